package outboxtest

import "github.com/waybill-go/waybill/core"

// What one session does about a record that another session has out.
var foreignChecks = []named{
	{"release-leaves-the-hold-of-another", releaseLeavesTheHoldOfAnother},
}

// Without this a record that is out at the former owner of its partition is handed out again.
func releaseLeavesTheHoldOfAnother(k *kit) {
	m, us, low, _ := k.handover()
	other := k.join(2)
	m.release(us[0], 1, refs(low)...)
	other.takeOwnership(us[0].Partition.Slots())
	for i := range low {
		_ = other.trySettle(core.Release(&low[i], 0, i%2 == 0))
		other.untouched("the new owner of its partition released it", m.self.Session, &low[i])
	}
	m.settle(core.Retry(&low[0], errNo, far), core.Release(&low[1], 0, false), core.Published(&low[2]), core.Abandon(&low[3], "", errNo))
	other.retrying(low[0].Ref)
	other.released("the session that had it out released it", &low[1])
	other.gone("the session that had it out settled it", low[2].Ref, low[3].Ref)
}
