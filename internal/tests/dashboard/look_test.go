package dashboard_test

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"golang.org/x/crypto/bcrypt"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/dashboard"
	"github.com/waybill-go/waybill/internal/demo"
	"github.com/waybill-go/waybill/internal/patience"
)

// axe returns axe-core, which scripts/servers installs.
func axe(t *testing.T) string {
	t.Helper()
	source, err := os.ReadFile(filepath.Join("axe", "node_modules", "axe-core", "axe.min.js"))
	if err != nil {
		t.Fatalf("no axe-core: %v: run scripts/servers", err)
	}
	return string(source)
}

// Every page, light and dark, on a desk and on a phone: axe-core finds nothing serious, no page is wider than its
// window, and neither menu nor tables have anything out of sight at their side.
// OP-07
func TestEveryPageIsAccessible(t *testing.T) {
	nightly(t)
	source := axe(t)
	hash, err := bcrypt.GenerateFromPassword([]byte("secret"), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	_, closed := shop(t, func(o *dashboard.Options) { o.Users = map[string]dashboard.User{"ada": {Password: string(hash)}} })
	d, site := shop(t, nil)
	b := newTab(t)
	b.open(site + "/parked")
	b.until(`document.body.innerText.includes("the order has no total")`)
	b.open(site)
	b.see("Overview", "it is larger than the broker takes")
	l, err := d.Store.List(t.Context(), admin.Filter{Topics: []string{demo.TopicPoison}}, admin.PageRequest{})
	if err != nil || len(l.Records) != 1 {
		t.Fatal(len(l.Records), err)
	}
	one := "/message?route=default&id=" + url.QueryEscape(l.Records[0].Envelope.ID)
	preview := func(at, button string) func(b *tab) {
		return func(b *tab) {
			b.open(site + at)
			b.click(`//button[starts-with(., "` + button + `")]`)
			b.until(`document.body.innerText.includes("Leave it")`)
		}
	}
	stranger := 0
	for name, show := range map[string]func(b *tab){
		"overview":        func(b *tab) { b.open(site) },
		"messages":        func(b *tab) { b.open(site + "/messages?outbox=shop") },
		"messages-none":   func(b *tab) { b.open(site + "/messages?topic=none") },
		"message":         func(b *tab) { b.open(site + one) },
		"keys":            func(b *tab) { b.open(site + "/keys") },
		"schedule":        func(b *tab) { b.open(site + "/schedule") },
		"parked":          func(b *tab) { b.open(site + "/parked") },
		"parked-message":  func(b *tab) { b.open(site + "/parked/message?position=1"); b.click(`//summary`) },
		"preview":         preview(one, "Send again"),
		"preview-delete":  preview(one, "Delete"),
		"preview-nothing": preview("/messages?topic="+demo.TopicNobody, "Send again"),
		"result": func(b *tab) {
			preview("/keys", "Try again at once")(b) // it fails again
			b.click(`//main//button[.="Try again at once"]`)
			b.see("Try again at once", "done")
		},
		"login": func(b *tab) { b.open(closed) },
		"login-refused": func(b *tab) {
			b.open(closed + "/login")
			stranger++ // of one name the fourth attempt has to wait
			b.run(chromedp.SendKeys("[name=user]", fmt.Sprintf("ada%d\tx\n", stranger), chromedp.ByQuery))
			b.until(`document.body.innerText.includes("Wrong")`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := &tab{t, b.ctx}
			b.look(name, source, show)
		})
	}
}

// look shows a page in every way, and checks it.
func (b *tab) look(name, source string, show func(*tab)) {
	for _, size := range []struct {
		name string
		w, h int64
	}{{"wide", 1280, 900}, {"narrow", 390, 844}} {
		b.run(emulation.SetDeviceMetricsOverride(size.w, size.h, 1, size.name == "narrow"))
		for _, scheme := range []string{"light", "dark"} {
			b.run(emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}))
			show(b)
			b.until(`document.readyState === "complete"`)
			b.shot(name + "-" + scheme + "-" + size.name)
			var wide []string
			b.run(chromedp.Evaluate(`(w => [...document.querySelectorAll("body *")].filter(e => e.matches(".scroll, nav") ? e.scrollWidth > e.clientWidth :
				document.documentElement.scrollWidth > w && e.getBoundingClientRect().right > w).map(e => e.outerHTML.slice(0, 100)))(`+strconv.FormatInt(size.w, 10)+`)`, &wide))
			if len(wide) > 0 {
				b.t.Errorf("%s: %s: wider than its window, or than its place: %q", name, size.name, wide)
			}
			var found []string
			b.run(chromedp.Evaluate(source+`; axe.run().then(r => r.violations.filter(v => v.impact === "serious" || v.impact === "critical").map(v => v.id + ": " + v.help + ": " + v.nodes.map(n => n.html).join(" ")))`,
				&found, func(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }))
			for _, problem := range found {
				b.t.Errorf("%s: %s, %s: %s", name, scheme, size.name, problem)
			}
		}
	}
}

// capture returns a picture of the whole page, also of the part below the window, or nil.
func (b *tab) capture() (picture []byte) {
	ctx, stop := context.WithTimeout(b.ctx, patience.For(3*time.Second))
	defer stop()
	var size []float64
	_ = chromedp.Run(ctx, page.BringToFront(), chromedp.Evaluate(`scrollTo(0, 0); [document.documentElement.clientWidth, Math.max(innerHeight, document.documentElement.scrollHeight)]`, &size),
		chromedp.ActionFunc(func(ctx context.Context) (err error) {
			picture, err = page.CaptureScreenshot().WithCaptureBeyondViewport(true).WithClip(&page.Viewport{Width: size[0], Height: size[1], Scale: 1}).Do(ctx)
			return err
		}))
	return picture
}

// shot keeps a picture, if the run asks for pictures.
func (b *tab) shot(name string) {
	dir := os.Getenv("WAYBILL_TEST_SCREENSHOTS")
	if dir == "" {
		return
	}
	picture := b.capture()
	for range 3 {
		if picture != nil {
			break
		}
		picture = b.capture() // now and then the browser forgets to answer
	}
	if err := os.WriteFile(filepath.Join(dir, name+".png"), picture, 0o600); err != nil {
		b.t.Fatal(err)
	}
}
