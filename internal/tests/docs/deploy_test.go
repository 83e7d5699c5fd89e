package docs_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/waybill-go/waybill/cli"
	"github.com/waybill-go/waybill/cli/adapters"
	"github.com/waybill-go/waybill/internal/tier"
)

const deploy = "../../../deploy"

func shipped(t *testing.T, path ...string) string {
	t.Helper()
	return read(t, filepath.Join(append([]string{deploy}, path...)...))
}

var prometheusName = regexp.MustCompile(`\b(waybill|messaging)_[a-z_]+[a-z]\b`)

// OP-08: the dashboard and the alert rules ask for metrics that exist only: docs/metrics.md has them all, which a test
// of its own compares with the emitted ones.
func TestDashboardAndAlertsUseMetricsThatExist(t *testing.T) {
	t.Parallel()
	exist := map[string]bool{}
	for _, name := range prometheusName.FindAllString(read(t, "../../../docs/metrics.md"), -1) {
		exist[name] = true
	}
	for _, file := range []string{"prometheus/waybill.rules.yaml", "grafana/waybill.json"} {
		names := prometheusName.FindAllString(shipped(t, file), -1)
		if len(names) < 10 {
			t.Errorf("%s: only %d metrics", file, len(names))
		}
		for _, name := range names {
			if !exist[name] && !exist[strings.TrimSuffix(name, "_bucket")] {
				t.Errorf("%s: there is no metric %s", file, name)
			}
		}
	}
	var dashboard struct {
		Panels []struct {
			ID      int
			Title   string
			Targets []struct{ Expr string }
			GridPos struct{ X, Y, W, H int }
		}
	}
	if err := json.Unmarshal([]byte(shipped(t, "grafana", "waybill.json")), &dashboard); err != nil {
		t.Fatal(err)
	}
	ids := map[int]bool{}
	for _, p := range dashboard.Panels {
		if ids[p.ID] || p.GridPos.X+p.GridPos.W > 24 || p.Title == "" {
			t.Errorf("panel %d (%s) is out of place", p.ID, p.Title)
		}
		ids[p.ID] = true
	}
}

// OP-08: every alert fires when it should, and none when all is well.
func TestAlertsFire(t *testing.T) {
	t.Parallel()
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		tier.Missing(t, "promtool is missing: run `make servers`, or install Debian's prometheus")
	}
	for _, args := range [][]string{{"check", "rules", "waybill.rules.yaml"}, {"test", "rules", "waybill.rules.test.yaml"}} {
		cmd := exec.CommandContext(t.Context(), promtool, args...)
		cmd.Dir = filepath.Join(deploy, "prometheus")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", args, err, out)
		}
	}
	tests := shipped(t, "prometheus", "waybill.rules.test.yaml")
	for _, m := range regexp.MustCompile(`alert: (\w+)`).FindAllStringSubmatch(shipped(t, "prometheus", "waybill.rules.yaml"), -1) {
		if !strings.Contains(tests, "alertname: "+m[1]+"\n") {
			t.Errorf("no test fires %s", m[1])
		}
	}
}

// OP-10, OP-23: the files for containers and services name files that are there, and settings that the command takes.
func TestDeployments(t *testing.T) {
	t.Parallel()
	settings := map[string]string{"compose": shipped(t, "docker", "waybill.yaml")}
	var manifest struct {
		Data map[string]string
	}
	first, _, _ := strings.Cut(shipped(t, "kubernetes", "waybill.yaml"), "\n---\n")
	if err := yaml.Unmarshal([]byte(first), &manifest); err != nil {
		t.Fatal(err)
	}
	settings["kubernetes"] = manifest.Data["waybill.yaml"]
	for name, text := range settings {
		file := filepath.Join(t.TempDir(), "waybill.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		var out, problems bytes.Buffer
		code := cli.App{Stores: adapters.Stores(), Transports: adapters.Transports()}.Run(t.Context(), []string{
			"config", "--config", file, "--set", "stores.shop.url=postgres://h/d", "--set", "transports.bus.url=amqp://h",
		}, cli.IO{Out: &out, Err: &problems})
		if code != cli.ExitOK {
			t.Errorf("%s: %s", name, problems.String())
		}
	}
	var compose struct {
		Services map[string]struct {
			Volumes []string
			Secrets []string
		}
		Secrets map[string]struct{ File string }
	}
	if err := yaml.Unmarshal([]byte(shipped(t, "docker", "compose.yaml")), &compose); err != nil {
		t.Fatal(err)
	}
	for name, s := range compose.Services {
		for _, v := range s.Volumes {
			host, _, _ := strings.Cut(v, ":")
			shipped(t, "docker", host)
		}
		for _, secret := range s.Secrets {
			shipped(t, "docker", compose.Secrets[secret].File)
		}
		if len(s.Volumes) == 0 && slices.Contains([]string{"relay", "migrate"}, name) {
			t.Errorf("service %s has no settings", name)
		}
	}
	if tool, err := exec.LookPath("systemd-analyze"); err == nil { // not on every machine
		partition := filepath.Join(t.TempDir(), "waybill.service")
		text := strings.ReplaceAll(shipped(t, "systemd", "waybill.service"), "/usr/local/bin/waybill", "/bin/true")
		if err := os.WriteFile(partition, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.CommandContext(t.Context(), tool, "verify", "--man=no", partition).CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("systemd-analyze: %v\n%s", err, out)
		}
	}
}
