package main

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/waybill-go/waybill/cli"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
)

// OP-02: a wrong password ends the relay at the start, with an error that names the settings and not the password.
func TestWrongPassword(t *testing.T) {
	t.Parallel()
	db := testenv.Postgres(t)
	migrated(t, db.DSN)
	user, _, _ := strings.Cut(userOf(db.DSN), ":")
	wrong := strings.Replace(db.DSN, "://"+userOf(db.DSN), "://"+user+":hunter2", 1)
	b := newBench(t)
	r := start(t, b.app(), "relay", "--config", write(t, "stores:\n  shop:\n    kind: postgres\n    url: "+wrong+"\ntransports:\n  bus:\n    kind: memory\nrelays:\n  a: {}\n"))
	r.end(t, cli.ExitFailed)
	says(t, r.log.String(), "error: waybill.yaml:9: relays.a: from stores.shop to transports.bus: ", "password")
	if strings.Contains(r.log.String(), "hunter2") {
		t.Errorf("tells the password:\n%s", r.log.String())
	}
}

// OP-02: a secret in a file is read again for each new connection, without a signal or a restart.
func TestRotatedPassword(t *testing.T) {
	t.Parallel()
	server := testenv.OwnPostgres(t, testenv.PostgresOptions{})
	db, err := server.CreateDatabase(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pool := migrated(t, db.DSN)
	exec := func(sql string) {
		t.Helper()
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	exec("CREATE ROLE relay LOGIN SUPERUSER PASSWORD 'first-pw'")
	as := func(password string) string { return strings.Replace(db.DSN, userOf(db.DSN), "relay:"+password, 1) }
	secret := filepath.Join(t.TempDir(), "url")
	rewrite(t, secret, as("first-pw")+"\n")
	b := newBench(t)
	r := start(t, b.app(), "relay", "--config", write(t, "stores:\n  shop:\n    kind: postgres\n    url: {file: "+secret+"}\ntransports:\n  bus:\n    kind: memory\nrelays:\n  a: {}\nhttp: {listen: '127.0.0.1:0'}\n"))
	at := address(t, &r.log)
	defer func() {
		if t.Failed() {
			t.Log(r.log.String())
		}
	}()
	ready := func(code int) {
		t.Helper()
		patience.Until(t, "ready or not", func() bool { got, _ := get(t, at+"/readyz"); return got == code })
	}
	ready(200)
	stagePG(t, pool, 1) // until something was settled, a password is a misconfiguration
	patience.Until(t, "published and settled", func() bool { return b.waiting() == 1 && outboxRows(t, pool) == 0 })
	exec("ALTER ROLE relay PASSWORD 'second-pw'")
	exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'relay'")
	ready(503)
	rewrite(t, secret, as("second-pw"))
	ready(200)
	if text := r.log.String(); strings.Contains(text, "first-pw") || strings.Contains(text, "second-pw") {
		t.Errorf("tells a password:\n%s", text)
	}
}

// Health and metrics over TLS, with a certificate that is read again; OTLP over TLS, with an authority of its own.
func TestTLS(t *testing.T) {
	t.Parallel()
	certs := testenv.NewTLS(t)
	received := make(chan string, 100)
	otlp := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case received <- r.URL.Path:
		default:
		}
	}))
	t.Cleanup(otlp.Close)
	trusted := filepath.Join(t.TempDir(), "otlp.pem")
	writeCertificate(t, trusted, otlp.Certificate())
	b := newBench(t)
	r := start(t, b.app(), "relay", "--config", write(t, b.base()+"relays:\n  a: {}\nhttp:\n  listen: 127.0.0.1:0\n  tls: {cert_file: "+certs.ServerCertFile+", key_file: "+certs.ServerKeyFile+
		"}\ntelemetry:\n  otlp:\n    endpoint: "+otlp.URL+"\n    interval: 1s\n    tls: {ca_file: "+trusted+"}\n"))
	at := strings.Replace(address(t, &r.log), "http://", "https://", 1)
	pem, err := os.ReadFile(certs.CAFile)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}}
	a, err := client.Get(at + "/livez")
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	if a.StatusCode != http.StatusOK {
		t.Error(a.Status)
	}
	patience.Until(t, "telemetry arrives", func() bool {
		select {
		case path := <-received:
			return path == "/v1/metrics" || path == "/v1/traces"
		default:
			return false
		}
	})
}
