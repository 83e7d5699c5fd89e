package cli

import (
	"context"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
)

// waitJSON says why a record waits, to programs.
type waitJSON struct {
	Cause string `json:"cause"`
	// Text says the same to people.
	Text string `json:"text"`
	// Other is the id of the message before it in its key, or of the one that tries for its topic. Because is why
	// the one before it waits.
	Other   string    `json:"other,omitempty"`
	Because *waitJSON `json:"because,omitempty"`
	// Members are those registered for the route. LockedBy names the transactions that have locked the record.
	Members  []string `json:"members,omitempty"`
	LockedBy []string `json:"locked_by,omitempty"`
}

// why asks why a record waits; nil if it has ended. An error is an answer, too: the record is shown all the same.
func (c *command) why(ctx context.Context, store core.OutboxStore, name string, r *admin.Stored) *waitJSON {
	if r.State.Terminal() {
		return nil
	}
	ctx, cancel := c.limited(ctx)
	defer cancel()
	w, err := admin.WhyWaits(ctx, store, r, c.conf.blocks(name, []string{r.Route}))
	if err != nil {
		return &waitJSON{Cause: "unknown", Text: "the store could not tell: " + core.ErrorText(err)}
	}
	return waitOf(&w)
}

func waitOf(w *admin.Waiting) *waitJSON {
	out := &waitJSON{Cause: string(w.Cause), Text: w.String(), Members: w.Members, LockedBy: w.LockedBy}
	if w.Other != nil {
		out.Other = w.Other.Envelope.ID
	}
	if w.Because != nil {
		out.Because = waitOf(w.Because)
	}
	return out
}

// text returns the text for people; none for a record that has ended.
func (w *waitJSON) text() string {
	if w == nil {
		return ""
	}
	return w.Text
}
