package recurring_test

import (
	"context"
	"fmt"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/recurring"
	"github.com/waybill-go/waybill/store/memory"
)

type Report struct {
	Day string `json:"day"`
}

var ReportDue = waybill.NewTopic("reports.due", waybill.JSON[Report]())

func Example() {
	store, err := memory.New(memory.Options{Source: "/shop"})
	if err != nil {
		panic(err)
	}
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		panic(err)
	}
	jobs, err := recurring.New(store, store, []recurring.Job{{
		Name:     "nightly-report",
		Schedule: "30 3 * * *",
		Location: berlin,
		Message: func(tick time.Time) (waybill.Message, error) {
			yesterday := tick.AddDate(0, 0, -1).Format(time.DateOnly)
			return ReportDue.Message(Report{Day: yesterday}), nil
		},
		Late: 12 * time.Hour, // a report that was missed in the night is made in the morning
		From: time.Date(2026, time.November, 1, 0, 0, 0, 0, berlin),
	}}, recurring.Options{})
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	fmt.Println(waybill.Run(ctx, jobs)) // beside the relay, in as many processes as you like
	// Output: <nil>
}
