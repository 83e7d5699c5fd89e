package testenv

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// PrometheusServer is a private Prometheus.
type PrometheusServer struct {
	port int
	dir  string
	proc *process
}

// OwnPrometheus starts a private Prometheus for this test alone, which reads the metrics of targets (host:port) and
// evaluates the rules of a file five times a second. It is removed at the end of the test.
func OwnPrometheus(tb TB, rules string, targets ...string) *PrometheusServer {
	tb.Helper()
	s, err := startPrometheus(tb.Context(), rules, targets)
	if err != nil {
		unavailable(tb, err)
		return nil
	}
	tb.Cleanup(s.close)
	return s
}

func startPrometheus(ctx context.Context, rules string, targets []string) (*PrometheusServer, error) {
	program, err := exec.LookPath("prometheus")
	if err != nil {
		return nil, fmt.Errorf("waybill/testenv: prometheus: %w: run `make servers`, or install it: %w", ErrUnavailable, err)
	}
	if rules, err = filepath.Abs(rules); err != nil {
		return nil, fmt.Errorf("waybill/testenv: prometheus: %w", err)
	}
	dir, err := newDir("prometheus", nil)
	if err != nil {
		return nil, err
	}
	s := &PrometheusServer{dir: dir}
	// Between finding the free port and binding it, another process may take it: try again with another one.
	for attempt := 0; ; attempt++ {
		if err = s.start(ctx, program, rules, targets); err == nil {
			return s, nil
		}
		if attempt == 1 || ctx.Err() != nil {
			s.close()
			return nil, err
		}
		s.end()
	}
}

func (s *PrometheusServer) start(ctx context.Context, program, rules string, targets []string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var err error
	if s.port, err = freePort(); err != nil {
		return err
	}
	conf := filepath.Join(s.dir, "prometheus.yaml")
	text := fmt.Sprintf("global: {scrape_interval: 200ms, scrape_timeout: 200ms, evaluation_interval: 200ms}\nrule_files: [%q]\n"+
		"scrape_configs:\n- job_name: waybill\n  static_configs: [{targets: [%q]}]\n", rules, strings.Join(targets, `", "`))
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		return fmt.Errorf("waybill/testenv: prometheus: %w", err)
	}
	log := filepath.Join(s.dir, "prometheus.log")
	// as this process's user, since others may not be able to read the rules
	if s.proc, err = start(nil, s.dir, log, []string{"PATH=/usr/bin:/bin", "HOME=" + s.dir}, program, "--config.file="+conf,
		"--storage.tsdb.path="+filepath.Join(s.dir, "data"), "--web.listen-address="+loopback(s.port), "--log.level=warn"); err != nil {
		return err
	}
	err = poll(ctx, s.proc.done, func(ctx context.Context) error {
		_, err := s.get(ctx, "/-/ready")
		return err
	})
	if err != nil {
		return fmt.Errorf("waybill/testenv: prometheus: start: %w\n%s", err, tail(log))
	}
	return nil
}

func (s *PrometheusServer) get(ctx context.Context, path string) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+loopback(s.port)+path, nil)
	if err != nil {
		return nil, fmt.Errorf("waybill/testenv: prometheus: %w", err)
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	a, err := client.Do(r)
	if err != nil {
		return nil, fmt.Errorf("waybill/testenv: prometheus: %w", err)
	}
	defer func() { _ = a.Body.Close() }()
	body, err := io.ReadAll(a.Body)
	if err == nil && a.StatusCode != http.StatusOK {
		err = fmt.Errorf("waybill/testenv: prometheus: %s: %s", path, a.Status)
	}
	return body, err
}

// Firing returns the names of the alerts that fire.
func (s *PrometheusServer) Firing(ctx context.Context) ([]string, error) {
	body, err := s.get(ctx, "/api/v1/alerts")
	if err != nil {
		return nil, err
	}
	var answer struct {
		Data struct {
			Alerts []struct {
				Labels map[string]string
				State  string
			}
		}
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, fmt.Errorf("waybill/testenv: prometheus: %w", err)
	}
	var names []string
	for _, a := range answer.Data.Alerts {
		if a.State == "firing" {
			names = append(names, a.Labels["alertname"])
		}
	}
	return names, nil
}

// Samples returns how many samples of the last minute it has of a metric, of the series with the fewest; 0 if there is
// none.
func (s *PrometheusServer) Samples(ctx context.Context, metric string) (int, error) {
	body, err := s.get(ctx, "/api/v1/query?query="+url.QueryEscape("min(count_over_time("+metric+"[1m]))"))
	if err != nil {
		return 0, err
	}
	var answer struct {
		Data struct {
			Result []struct{ Value [2]any }
		}
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return 0, fmt.Errorf("waybill/testenv: prometheus: %w", err)
	}
	if len(answer.Data.Result) == 0 {
		return 0, nil
	}
	text, _ := answer.Data.Result[0].Value[1].(string)
	return strconv.Atoi(text)
}

func (s *PrometheusServer) end() {
	if s.proc != nil {
		s.proc.kill()
	}
	freed(s.port)
}

func (s *PrometheusServer) close() {
	s.end()
	_ = os.RemoveAll(s.dir)
}
