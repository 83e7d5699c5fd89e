package dashboard_test

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"io"
	"maps"
	"math/big"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/waybill-go/waybill/dashboard"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/tier"
)

// provider is an OpenID provider that lets in everybody, as the person that the cookie "person" names.
func provider(t *testing.T) *httptest.Server {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	text := base64.RawURLEncoding.EncodeToString
	reply := func(w http.ResponseWriter, v any) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(v)
	}
	mux := http.NewServeMux()
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	mux.HandleFunc("GET /.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, map[string]any{
			"issuer": server.URL, "authorization_endpoint": server.URL + "/auth", "token_endpoint": server.URL + "/token", "jwks_uri": server.URL + "/keys",
			"response_types_supported": []string{"code"}, "subject_types_supported": []string{"public"}, "id_token_signing_alg_values_supported": []string{"RS256"},
		})
	})
	mux.HandleFunc("GET /keys", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, map[string]any{"keys": []any{map[string]string{
			"kty": "RSA", "use": "sig", "alg": "RS256", "kid": "1", "n": text(key.N.Bytes()), "e": text(big.NewInt(int64(key.E)).Bytes()),
		}}})
	})
	mux.HandleFunc("GET /auth", func(w http.ResponseWriter, r *http.Request) {
		q, person := r.URL.Query(), ""
		if c, err := r.Cookie("person"); err == nil {
			person = c.Value
		}
		back := url.Values{"state": {q.Get("state")}, "code": {person + " " + q.Get("nonce")}}
		http.Redirect(w, r, q.Get("redirect_uri")+"?"+back.Encode(), http.StatusFound)
	})
	mux.HandleFunc("POST /token", func(w http.ResponseWriter, r *http.Request) {
		person, nonce, _ := strings.Cut(r.FormValue("code"), " ")
		claims, _ := json.Marshal(map[string]any{
			"iss": server.URL, "sub": person, "aud": "waybill", "exp": time.Now().Add(time.Hour).Unix(), "iat": time.Now().Unix(),
			"email": person, "email_verified": true, "nonce": nonce,
		})
		signed := text([]byte(`{"alg":"RS256","kid":"1","typ":"JWT"}`)) + "." + text(claims)
		sum := sha256.Sum256([]byte(signed))
		signature, err := rsa.SignPKCS1v15(nil, key, crypto.SHA256, sum[:])
		if err != nil {
			t.Error(err)
		}
		reply(w, map[string]any{"access_token": "x", "token_type": "Bearer", "expires_in": 3600, "id_token": signed + "." + text(signature)})
	})
	return server
}

// With the settings of docs/dashboard.md oauth2-proxy lets in the people of its domain, each with the right of the user
// with that e-mail address. People of other domains, and a browser without a session, are refused. The headers of a
// browser change nothing.
// OP-07, SE-07
func TestBehindOAuth2Proxy(t *testing.T) {
	t.Parallel()
	tier.Nightly(t, "a proxy that nobody else needs is built for it")
	program := os.Getenv("WAYBILL_TEST_OAUTH2_PROXY")
	if program == "" {
		program = "oauth2-proxy"
	}
	if _, err := exec.LookPath(program); err != nil {
		tier.Missing(t, "no oauth2-proxy: %v: run scripts/oauth2proxy, and set WAYBILL_TEST_OAUTH2_PROXY to what it prints", err)
	}
	page, err := os.ReadFile("../../../docs/dashboard.md")
	if err != nil {
		t.Fatal(err)
	}
	_, settings, _ := strings.Cut(string(page), "```toml\n")
	settings, _, _ = strings.Cut(settings, "```")
	// The addresses of a proxy are those of its requests: here all are of this machine.
	_, site := shop(t, func(o *dashboard.Options) {
		o.Proxy = dashboard.Proxy{From: []string{"127.0.0.1"}, UserHeader: "X-Forwarded-Email"}
		o.Users = map[string]dashboard.User{"ada@example.org": {Right: dashboard.RightEdit}}
	})
	oidc, dir := provider(t), t.TempDir()
	for name, text := range map[string]string{"client": "secret", "cookie": strings.Repeat("c", 32)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for old, now := range map[string]string{
		"https://login.example/realms/ops": oidc.URL, "/run/secrets/": dir + "/", "http://10.0.0.8:9464/": site + "/",
	} {
		if !strings.Contains(settings, old) {
			t.Fatalf("docs/dashboard.md has no %s", old)
		}
		settings = strings.ReplaceAll(settings, old, now)
	}
	file := filepath.Join(dir, "proxy.toml")
	if err := os.WriteFile(file, []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}
	free, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	_ = free.Close()
	var out strings.Builder
	cmd := exec.CommandContext(t.Context(), program, "--config="+file, "--http-address="+address, "--cookie-secure=false", "--redirect-url=http://"+address+"/oauth2/callback")
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
		if t.Failed() {
			t.Log(out.String())
		}
	})
	patience.Until(t, "the proxy answers", func() bool {
		select {
		case <-ended:
			t.Fatal("the proxy has ended")
		default:
		}
		r, err := http.Get("http://" + address + "/ping")
		if err == nil {
			_ = r.Body.Close()
		}
		return err == nil && r.StatusCode == http.StatusOK
	})
	get := func(person, target string, more http.Header) (int, string) {
		t.Helper()
		jar, _ := cookiejar.New(nil) // it never fails
		at, _ := url.Parse(oidc.URL)
		jar.SetCookies(at, []*http.Cookie{{Name: "person", Value: person}})
		browser := &http.Client{Jar: jar}
		var status int
		var body []byte
		for _, target := range []string{"http://" + address + "/oauth2/start?rd=" + url.QueryEscape(target), "http://" + address + target} {
			if person == "" && strings.Contains(target, "/oauth2/") {
				continue
			}
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, target, nil)
			if err != nil {
				t.Fatal(err)
			}
			maps.Copy(r.Header, more)
			answer, err := browser.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			body, _ = io.ReadAll(answer.Body)
			_ = answer.Body.Close()
			status = answer.StatusCode
		}
		return status, string(body)
	}
	forged := http.Header{"X-Forwarded-Email": {"ada@example.org"}, "X-Forwarded-User": {"ada@example.org"}, "X-Forwarded-For": {"127.0.0.1"}}
	for _, c := range []struct {
		person string
		more   http.Header
		status int
		forms  bool // it may act
	}{
		{"ada@example.org", nil, http.StatusOK, true},
		{"grace@example.org", nil, http.StatusOK, false},
		{"grace@example.org", forged, http.StatusOK, false},
		{"eve@evil.example", nil, http.StatusForbidden, false},
		{"eve@evil.example", forged, http.StatusForbidden, false},
		{"", forged, http.StatusForbidden, false},
	} {
		status, body := get(c.person, "/messages?state=abandoned", c.more)
		acts := strings.Contains(body, `action="/preview"`)
		if status != c.status || acts != c.forms || status == http.StatusOK && !strings.Contains(body, c.person) {
			t.Errorf("%q with %v: status %d, may act %t:\n%.2000s", c.person, c.more, status, acts, body)
		}
	}
}
