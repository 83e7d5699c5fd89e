package dashboard

import (
	"errors"
	"log/slog"
	"net/http"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

type notFound struct{ text string }

func (e *notFound) Error() string { return e.text }

type refused struct {
	status int
	text   string
}

func (e *refused) Error() string { return e.text }

// fail shows an error as a page.
func (d *Dashboard) fail(w http.ResponseWriter, r *http.Request, err error) {
	status, head, text := http.StatusInternalServerError, "Something is wrong", core.ErrorText(err)
	var missing *notFound
	var no *refused
	switch {
	case errors.As(err, &missing):
		status, head = http.StatusNotFound, "Not found"
	case errors.As(err, &no):
		status, head = no.status, "Refused"
	case errors.Is(err, waybill.ErrNotFound):
		status, head = http.StatusNotFound, "It is not there any more"
	case errors.Is(err, waybill.ErrInvalid):
		status, head = http.StatusBadRequest, "That cannot be asked"
	case errors.Is(err, waybill.ErrInFlight):
		status, head = http.StatusConflict, "Not now"
	case waybill.ClassOf(err) == waybill.ClassOutage:
		status, head = http.StatusServiceUnavailable, "No answer"
	}
	if status == http.StatusInternalServerError {
		d.log.ErrorContext(r.Context(), "page failed", "event", "dashboard.failed", "path", r.URL.Path, "error", text)
	}
	if r.Method == http.MethodPost && status/100 == 4 {
		d.tell(r, slog.LevelWarn, "dashboard.refused", "an action was refused", sessionOf(r).user, "path", r.URL.Path, "action", clip(r.PostFormValue("action"), 40), "status", status, "error", text)
	}
	if err := d.render(w, r, status, "error", struct{ Head, Text string }{head, text}); err != nil {
		http.Error(w, text, status)
	}
}
