package storetest

import (
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/waybill-go/waybill/admin/audit"
)

var auditChecks = []named{
	{"audit-record-is-added-to", auditRecordIsAddedTo},
}

// The audit record returns each line as it was written, cut, the newest first and in pages. The store numbers lines,
// and gives them its time. A line that says too little is refused. OP-21.
func auditRecordIsAddedTo(k *kit) {
	r := capability[audit.Recorder](k)
	act := k.route // of this check alone: others write to the record, too
	line := func(phase, result string) audit.Entry {
		e := audit.Entry{
			Act: act, Phase: phase, User: "ada\x00\xff", Via: "command", From: "host", Action: "redrive", Target: "'; --", Filter: "route=r",
			IDs: []string{"1", "\"2,"}, Result: result, Number: 7, At: time.Unix(7, 0), Role: "eve",
		}
		e.Body([]byte("old"), []byte("new"))
		return e
	}
	written := []audit.Entry{line("begin", ""), line("end", strings.Repeat("é", 4096))}
	for i := range written {
		k.must("append a line", r.AppendAudit(k.ctx, written[i]))
	}
	var got []audit.Entry
	for before := int64(0); ; {
		page, err := r.ListAudit(k.ctx, before, 1)
		k.must("list the lines", err)
		if len(page) == 0 {
			break
		}
		if len(page) > 1 || before != 0 && page[0].Number >= before {
			k.fail("a page of one line before %d has %d lines, the first with number %d", before, len(page), page[0].Number)
		}
		if before = page[0].Number; page[0].Act == act {
			got = append(got, page[0])
		}
	}
	k.failIf(len(got) != 2 || got[0].Phase != "end" || got[1].Phase != "begin",
		"two lines were written, and then listed: %+v", got)
	for i := range got {
		g, w := got[i], written[1-i]
		w.User = "ada\ufffd\ufffd"
		w.Result = w.Result[:min(len(w.Result), 4096)]
		diff := cmp.Diff(w, g, cmpopts.IgnoreFields(audit.Entry{}, "Number", "At", "Role"))
		k.failIf(diff != "", "a line came back changed (-written +read):\n%s", diff)
		k.failIf(time.Since(g.At).Abs() > time.Hour || g.Number == 7 && g.At.Unix() == 7 || g.Role == "eve",
			"the writer has chosen the number, the time or the role of a line: %d, %v, %q", g.Number, g.At, g.Role)
	}
	err := r.AppendAudit(k.ctx, audit.Entry{Act: act, Phase: "middle"})
	k.failIf(err == nil, "a line without an action, and with an unknown phase, was taken")
}
