package cli

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/admin/audit"
)

func (c *command) auditCommand() *cobra.Command {
	var store string
	var before int64
	var limit int
	log := &cobra.Command{
		Use: "log", Short: "list the acts of operators, the newest first", Args: cobra.NoArgs,
		Long: `log lists the audit record of a store: each act of the command and of the dashboard, by whom, from where, with which filter, which
messages and what result. Each act has a line at its begin and one at its end; an act without an end was cut off.`,
		RunE: c.onStore(&store, func(ctx context.Context, s *Store, _ []string) error {
			p := problems{}
			p.between("--limit", limit, 1, admin.MaxPageLimit)
			if err := p.err(); err != nil {
				return err
			}
			recorder, err := able[audit.Recorder](s.Outbox, "store", "keep an audit record")
			if err != nil {
				return err
			}
			ctx, cancel := c.limited(ctx)
			defer cancel()
			list, err := recorder.ListAudit(ctx, before, limit)
			if err != nil {
				return err
			}
			return c.showAudit(list)
		}),
	}
	storeFlag(log, &store)
	log.Flags().Int64Var(&before, "before", 0, "lines before the one with this number; 0 = from the newest")
	log.Flags().IntVar(&limit, "limit", 50, "lines at most")
	return group("audit", "read the audit record", log)
}

// auditJSON is a line as programs get it.
type auditJSON struct {
	Number int64     `json:"number"`
	At     time.Time `json:"at"`
	Role   string    `json:"role"`
	Act    string    `json:"act"`
	Phase  string    `json:"phase"`
	User   string    `json:"user"`
	Via    string    `json:"via"`
	From   string    `json:"from"`
	Action string    `json:"action"`
	Target string    `json:"target,omitempty"`
	Filter string    `json:"filter,omitempty"`
	IDs    []string  `json:"ids,omitempty"`
	Before string    `json:"before,omitempty"`
	After  string    `json:"after,omitempty"`
	Result string    `json:"result,omitempty"`
}

func (c *command) showAudit(list []audit.Entry) error {
	if c.json {
		out := make([]auditJSON, 0, len(list))
		for i := range list {
			out = append(out, auditJSON(list[i]))
		}
		return c.writeJSON(out)
	}
	rows := make([][]string, 0, len(list))
	for i := range list {
		e := &list[i]
		what := []string{e.Filter}
		if len(e.IDs) > 0 {
			what = append(what, "ids "+strings.Join(e.IDs, " "))
		}
		if e.After != "" {
			what = append(what, "body "+e.Before+" to "+e.After)
		}
		rows = append(rows, []string{
			strconv.FormatInt(e.Number, 10), e.At.UTC().Format(time.RFC3339), e.Phase, e.User, e.Via, e.From, e.Action, e.Target,
			oneLine(strings.TrimSpace(strings.Join(what, " "))), oneLine(e.Result),
		})
	}
	return c.table([]string{"NUMBER", "AT", "PHASE", "USER", "VIA", "FROM", "ACTION", "TARGET", "WHAT", "RESULT"}, rows)
}
