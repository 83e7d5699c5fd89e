package dashboard_test

import (
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/demo"
)

// From the list of problems to the message, which is sent again.
// OP-07
func TestSendAgain(t *testing.T) {
	nightly(t)
	_, url := shop(t, nil)
	b := newTab(t)
	b.open(url)
	b.see("Overview", "it is larger than the broker takes", "1 message of queue billing.orders is parked")
	b.click(`//li[contains(., "larger than the broker")]//a`)
	b.see("Messages", demo.TopicPoison, "With all that match")
	b.click(`//a[.="` + demo.TopicPoison + `"]`)
	b.see(demo.TopicPoison, "it is larger than the broker takes", "Turin")
	b.click(`//button[starts-with(., "Send again")]`)
	b.see("Send again?", "1 message would be sent again")
	b.click(`//a[.="Leave it"]`)
	b.see(demo.TopicPoison)
	b.click(`//button[starts-with(., "Send again")]`)
	b.see("Send again?")
	b.click(`//main//button[.="Send again"]`)
	b.see("Send again", "1 sent again, of 1 that matched")
	b.click(`//main//a[.="Overview"]`)
	b.see("Overview")
}

// OP-07
func TestMendAndReplay(t *testing.T) {
	nightly(t)
	d, url := shop(t, nil)
	b := newTab(t)
	b.open(url + "/parked")
	b.see("Parked messages of", "the order has no total")
	b.click(`//tbody//a`)
	b.see(demo.TopicOrders, "Oslo")
	b.click(`//summary`)
	b.run(chromedp.SetValue("textarea", `{"order":6,"total":9.5}`, chromedp.ByQuery))
	b.click(`//button[starts-with(., "Replay with this body")]`)
	b.see("Replay?", "1 message would go back into the queue as a first attempt, with a body of 23 bytes")
	b.click(`//main//button[.="Replay"]`)
	b.see("Replay", "1 message replayed")
	b.open(url + "/parked")
	b.see("Parked messages of", "the consumer gave nothing up")
	if n := len(d.Bus.Parked(demo.Queue)); n != 0 {
		t.Errorf("%d messages are parked", n)
	}
}

// The overview shows by itself what has changed.
// OP-07
func TestPauseAndResume(t *testing.T) {
	nightly(t)
	d, url := shop(t, nil)
	b := newTab(t)
	b.open(url)
	b.see("Overview", "route mails")
	b.click(`//button[@aria-label="Pause route mails of shop"]`)
	b.see("Pause?", "stops publishing route mails of shop")
	b.click(`//main//button[.="Pause"]`)
	b.see("Pause", "done")
	b.click(`//main//a[.="Overview"]`)
	b.see("Overview", "shop: route mails: paused")
	b.run(chromedp.Evaluate(`window.notLoadedAgain = true`, nil))
	if err := d.Relay.Resume(demo.RouteMails); err != nil {
		t.Fatal(err)
	}
	b.until(`window.notLoadedAgain && !document.body.innerText.includes("shop: route mails: paused")`)
	if err := d.Relay.Pause(demo.RouteMails); err != nil {
		t.Fatal(err)
	}
	b.until(`window.notLoadedAgain && document.body.innerText.includes("shop: route mails: paused")`)
	b.click(`//button[@aria-label="Resume route mails of shop"]`)
	b.see("Resume?")
	b.click(`//main//button[.="Resume"]`)
	b.see("Resume", "done")
}

// All of it without a mouse, while the overview changes beneath.
// OP-07
func TestKeyboardOnly(t *testing.T) {
	nightly(t)
	_, url := shop(t, nil)
	b := newTab(t)
	b.open(url)
	b.see("Overview", "it is larger than the broker takes")
	b.tabTo("Blocked keys")
	b.see("Blocked keys", "queue billing.orders is full")
	b.tabTo("Skip…")
	b.see("Skip?", "given up, for good")
	b.tabTo("Skip")
	b.see("Skip", "done")
	b.tabTo("Overview")
	b.see("Overview")
	// The element with the focus keeps it when newer numbers come.
	b.run(chromedp.KeyEvent(kb.Tab), chromedp.Evaluate(`document.querySelector(".attention a").focus(); window.first = document.querySelector(".attention a"); true`, nil))
	b.until(`document.querySelector(".attention a") !== window.first && document.activeElement === document.querySelector(".attention a")`)
	b.tabTo("Pause route default of shop")
	b.see("Pause?")
	b.tabTo("Leave it")
	b.see("Overview")
	b.tabTo("Parked")
	b.see("Parked messages of")
	b.tabTo(demo.TopicOrders)
	b.see(demo.TopicOrders)
	b.tabTo("Mend the body and replay")
	b.tabTo("Replay with this body…")
	b.see("Replay?")
	b.tabTo("Replay")
	b.see("Replay", "1 message replayed")
}

const hostile = `"'><script>alert(1)</script><img src=x onerror=alert(2)><svg onload=alert(3)></textarea></pre>{{.}}`

// Texts of messages stay texts, on every page where they are.
// OP-07
func TestHostileTexts(t *testing.T) {
	nightly(t)
	evil := waybill.RawMessage(demo.TopicPoison, "text/html", []byte(hostile))
	evil.Key, evil.Tenant, evil.Subject, evil.CorrelationID = hostile, hostile, hostile, hostile
	evil.Headers = map[string]string{"x-evil": hostile}
	blocked, parked := evil, evil
	blocked.Topic, blocked.Key = demo.TopicOrders, demo.BlockedKey
	parked.Topic = demo.TopicOrders
	_, url := shop(t, nil, evil, parked, blocked)
	b := newTab(t)
	b.open(url)
	b.see("Overview", "2 messages of queue billing.orders are parked")
	b.open(url + "/messages")
	b.see("Messages", "<script>alert(1)</script>")
	b.click(`//tr[contains(., "alert(1)")]//a`)
	b.see(demo.TopicPoison, "<svg onload=alert(3)>", "x-evil")
	b.click(`//button[starts-with(., "Send again")]`)
	b.see("Send again?")
	b.open(url + "/messages?key=" + strings.ReplaceAll(hostile, " ", "+"))
	b.see("Messages", "<img src=x")
	b.open(url + "/parked")
	b.see("Parked messages of", "<script>alert(1)</script>")
	b.click(`//tr[contains(., "alert(1)")]//a`)
	b.see(demo.TopicOrders, "<svg onload=alert(3)>")
	b.click(`//summary`)
	b.until(`document.querySelector("textarea").value === ` + "`" + hostile + "`")
}
