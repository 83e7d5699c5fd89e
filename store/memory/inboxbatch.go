package memory

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/waybill-go/waybill/core"
)

var (
	_ core.BatchInbox[*Tx] = (*Store)(nil)
	_ core.Marker[*Tx]     = (*Store)(nil)
	_ core.InboxPurger     = (*Store)(nil)
)

// inboxMarks are the committed marks. The store's mu guards them.
type inboxMarks struct {
	at  map[core.InboxKey]inboxMark // by keys without a hash
	log []core.InboxKey             // in the order of their time
}

type inboxMark struct {
	at   time.Time
	hash string
}

func newInboxMarks() inboxMarks { return inboxMarks{at: map[core.InboxKey]inboxMark{}} }

func (m *inboxMarks) copy() inboxMarks { return inboxMarks{maps.Clone(m.at), slices.Clone(m.log)} }

func (m *inboxMarks) add(keys []core.InboxKey, now time.Time) {
	for _, k := range keys {
		m.at[k.WithoutHash()] = inboxMark{now, k.ContentHash}
		m.log = append(m.log, k.WithoutHash())
	}
}

// purge deletes up to limit marks of consumer (empty = all) from before deadline.
func (m *inboxMarks) purge(consumer string, deadline time.Time, limit int) int {
	n, end := 0, 0
	kept := m.log[:0]
	for _, k := range m.log {
		if n == limit || !m.at[k].at.Before(deadline) {
			break
		}
		end++
		if consumer != "" && k.Consumer != consumer {
			kept = append(kept, k)
			continue
		}
		delete(m.at, k)
		n++
	}
	kept = append(kept, m.log[end:]...)
	clear(m.log[len(kept):])
	m.log = kept
	return n
}

// markKey locks key for tx and marks it there, if it is new.
func (s *Store) markKey(ctx context.Context, tx *Tx, key core.InboxKey) (st core.InboxStatus, err error) {
	err = s.whenFree(ctx, tx, "inbox", func() (wait *Tx, err error) {
		bare := key.WithoutHash()
		if wait := tx.reserve(bare); wait != nil {
			return wait, nil
		}
		if m, marked := s.inbox.at[bare]; marked {
			st = key.StatusOfMarked([]byte(m.hash))
			return nil, nil
		}
		if i := slices.IndexFunc(tx.marked, func(k core.InboxKey) bool { return k.WithoutHash() == bare }); i >= 0 {
			st = key.StatusOfMarked(tx.marked[i].ContentHashBytes())
			return nil, nil
		}
		st = core.InboxNew
		tx.marked = append(tx.marked, key)
		tx.steps = append(tx.steps, step{kind: stepWrite, undo: func() { tx.marked = tx.marked[:len(tx.marked)-1] }})
		return nil, nil
	})
	if err != nil {
		return core.InboxNone, outage("inbox", err)
	}
	return st, nil
}

// DoBatch runs fn once for the keys that are new, as core.BatchInbox says.
func (s *Store) DoBatch(
	ctx context.Context, keys []core.InboxKey, fn func(ctx context.Context, tx *Tx, fresh []int) error,
) ([]core.InboxStatus, error) {
	if err := core.CheckInboxKeys(keys...); err != nil {
		return nil, err
	}
	order := make([]int, len(keys))
	for i := range keys {
		order[i] = i
	}
	slices.SortStableFunc(order, func(x, y int) int { // so that two batches never wait for each other
		a, b := &keys[x], &keys[y]
		return cmp.Or(cmp.Compare(a.Consumer, b.Consumer), cmp.Compare(a.Source, b.Source), cmp.Compare(a.ID, b.ID))
	})
	tx := s.Begin()
	defer tx.Rollback() // nothing is left to roll back after a commit
	statuses := make([]core.InboxStatus, len(keys))
	var fresh []int
	for _, i := range order {
		st, err := s.markKey(ctx, tx, keys[i])
		if err != nil {
			return nil, err
		}
		if statuses[i] = st; st == core.InboxNew {
			fresh = append(fresh, i)
		}
	}
	if len(fresh) == 0 {
		return statuses, nil
	}
	slices.Sort(fresh)
	if err := fn(ctx, tx, fresh); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, outage("inbox", err)
	}
	if err := tx.Commit(); err != nil {
		return nil, err
	}
	return statuses, nil
}

// Mark marks key in tx, as core.Marker says.
func (s *Store) Mark(ctx context.Context, tx *Tx, key core.InboxKey) (core.InboxStatus, error) {
	if err := s.owns(tx); err != nil {
		return core.InboxNone, fmt.Errorf("waybill/memory: mark: %w", err)
	}
	if err := core.CheckInboxKeys(key); err != nil {
		return core.InboxNone, err
	}
	return s.markKey(ctx, tx, key)
}

// PurgeInbox deletes old marks, as core.InboxPurger says.
func (s *Store) PurgeInbox(ctx context.Context, consumer string, age time.Duration, limit int) (int, error) {
	if err := core.CheckPurge(age, limit); err != nil {
		return 0, err
	}
	if err := ctx.Err(); err != nil {
		return 0, outage("inbox", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inbox.purge(consumer, s.now().Add(-age), limit), nil
}
