package postgres

import (
	"github.com/waybill-go/waybill/internal/sqltext"
	"github.com/waybill-go/waybill/store/postgres/internal/schema"
)

// newNames returns the names of an outbox, or of an inbox, with the words of package sqltext.
func newNames(schemaName, outbox, inbox string) schema.Names {
	return schema.NewNames(schemaName, outbox, inbox).With(sqltext.Words()...)
}

// statements are the texts of an outbox, with its names in their places. They are rendered once.
type statements struct {
	fence         string
	clock         clockStatements
	read          readStatements
	settle        settleStatements
	hold          holdStatements
	due           dueStatements
	release       releasePartitionStatements
	heartbeat     heartbeatStatements
	clean         cleanStatements
	admin         adminStatements
	decide        decideStatements
	decideRecords decideRecordsStatements
}

func newStatements(n schema.Names) *statements {
	return &statements{
		fence:         n.SQL(fenceSQL),
		clock:         newClockStatements(n),
		read:          newReadStatements(n),
		settle:        newSettleStatements(n),
		hold:          newHoldStatements(n),
		due:           newDueStatements(n),
		release:       newReleasePartitionStatements(n),
		heartbeat:     newHeartbeatStatements(n),
		clean:         newCleanStatements(n),
		admin:         newAdminStatements(n),
		decide:        newDecideStatements(n),
		decideRecords: newDecideRecordsStatements(n),
	}
}
