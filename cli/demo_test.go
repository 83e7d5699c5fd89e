package cli

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/waybill-go/waybill/internal/patience"
)

// The demo serves its dashboard without any server, and leaves nothing behind.
// OP-07
func TestDemo(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	r, w := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := runDemo(ctx, slog.New(slog.DiscardHandler), w)
		_ = w.CloseWithError(io.EOF)
		ended <- err
	}()
	said := make([]byte, 4096)
	n, err := r.Read(said)
	url := regexp.MustCompile(`http://localhost:\d+/\?token=\w+`).FindString(string(said[:n]))
	if err != nil || url == "" {
		t.Fatalf("it says %q: %v", said[:n], err)
	}
	url = strings.Replace(url, "localhost", "127.0.0.1", 1)
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	viewer := &http.Client{Jar: jar}
	patience.Until(t, "the troubles show", func() bool {
		page := fetch(t, viewer, url)
		return strings.Contains(page, "is parked") && strings.Contains(page, "it is larger than the broker takes")
	})
	stop()
	if err := <-ended; err != nil {
		t.Errorf("it ends with %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(os.TempDir(), "*")); len(left) != 0 {
		t.Errorf("it leaves %q", left)
	}
}

func fetch(t *testing.T, viewer *http.Client, url string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := viewer.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}
