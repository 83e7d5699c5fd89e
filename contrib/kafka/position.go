package kafka

import (
	"cmp"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// A queue settles its messages in any order, but a group has one number for each partition. So the commit is the
// offset of the first message that is not done, and its metadata says which messages behind it are not done either, up
// to the last one that was handed out or done, and how often each was delivered. Messages that the metadata does not
// list are done. Listing what is done instead would not end: a queue that wants every second message has as many holes
// as messages.

// maxMetadata is the brokers' default limit (offset.metadata.max.bytes), less a reserve.
const maxMetadata = 4000

// entryBytes is what a message adds to the metadata, at most, for offsets that are near; splitBytes what a run adds
// that is split.
const (
	entryBytes = 9
	splitBytes = 5
)

const metadataVersion = "w1:"

// entry is a message that is not done.
type entry struct {
	offset int64
	count  int         // deliveries without an outcome
	record *kgo.Record // nil = not fetched yet
	tick   uint64      // of its fetch, see bindings
	due    time.Time   // of a retry
	out    bool        // it is handed out
}

// position is the state of a partition that a receiver owns.
type position struct {
	topic   string
	number  int32
	retries bool
	next    int64    // the offset behind the last one fetched; -1 = not known
	high    int64    // below it, everything is listed or done
	entries []*entry // by offset; those below high are listed
	bytes   int      // of the fetched records among them
	outs    int      // those that are handed out
	paused  bool     // the client does not fetch
	dirty   bool     // it differs from what is committed
	leaving bool     // nothing is handed out any more
	gone    bool     // another receiver owns it, or nobody
}

func (p *position) find(offset int64) (int, bool) {
	return slices.BinarySearchFunc(p.entries, offset, func(e *entry, o int64) int { return cmp.Compare(e.offset, o) })
}

// fetched takes the next record of the partition. Listed messages before it are not in the log any more.
func (p *position) fetched(rec *kgo.Record, tick uint64) {
	first, _ := p.find(p.next)
	last, _ := p.find(rec.Offset)
	if first < last {
		p.entries = slices.Delete(p.entries, first, last)
		p.dirty = true
	}
	if p.next < 0 {
		p.high = rec.Offset
	}
	p.next = rec.Offset + 1
	i, listed := p.find(rec.Offset)
	switch {
	case !listed && rec.Offset < p.high:
		return // done
	case !listed:
		p.entries = slices.Insert(p.entries, i, &entry{offset: rec.Offset})
	}
	e := p.entries[i]
	e.record, e.tick = rec, tick
	if p.retries {
		e.due = due(rec)
	}
	p.bytes += len(rec.Value) + 256
}

// done removes a message.
func (p *position) done(e *entry) {
	if i, ok := p.find(e.offset); ok && p.entries[i] == e {
		p.entries = slices.Delete(p.entries, i, i+1)
		p.bytes -= len(e.record.Value) + 256
		if e.out {
			p.outs--
		}
	}
	p.high, p.dirty = max(p.high, e.offset+1), true
}

// undo makes a message that was done one that is handed out again: its commit has failed.
func (p *position) undo(e *entry) {
	if i, ok := p.find(e.offset); !ok {
		p.entries = slices.Insert(p.entries, i, e)
		p.bytes += len(e.record.Value) + 256
		p.outs++
	}
	p.dirty = true
}

// handOut marks a message as delivered once more. It reports false, and does nothing, if the metadata could become too
// long, also by the settles to come: each can split a run.
func (p *position) handOut(e *entry) bool {
	high := p.high
	e.out, e.count, p.outs, p.high = true, e.count+1, p.outs+1, max(p.high, e.offset+1)
	if listed, _ := p.find(p.high); listed*entryBytes > maxMetadata {
		if _, meta := p.commit(); len(meta)+splitBytes*p.outs > maxMetadata {
			e.out, e.count, p.outs, p.high = false, e.count-1, p.outs-1, high
			return false
		}
	}
	p.dirty = true
	return true
}

// putBack undoes handOut.
func (p *position) putBack(e *entry) {
	e.out, e.count, p.outs, p.dirty = false, e.count-1, p.outs-1, true
}

// commit returns the offset and the metadata to commit: the distance to high, and runs of messages that are not done,
// as the gap before, the length and the count that all of a run have.
func (p *position) commit() (offset int64, metadata string) {
	if len(p.entries) == 0 || p.entries[0].offset >= p.high {
		return p.high, ""
	}
	base := p.entries[0].offset
	raw := binary.AppendUvarint(nil, uint64(p.high-base))
	at := base
	for i := 0; i < len(p.entries) && p.entries[i].offset < p.high; {
		first, n := p.entries[i], 0
		for i < len(p.entries) && p.entries[i].offset == first.offset+int64(n) && p.entries[i].count == first.count && p.entries[i].offset < p.high {
			i, n = i+1, n+1
		}
		raw = binary.AppendUvarint(raw, uint64(first.offset-at))
		length := uint64(n) << 1
		if first.count > 0 {
			length |= 1
		}
		raw = binary.AppendUvarint(raw, length)
		if first.count > 0 {
			raw = binary.AppendUvarint(raw, uint64(first.count))
		}
		at = first.offset + int64(n)
	}
	return base, metadataVersion + base64.RawStdEncoding.EncodeToString(raw)
}

// errMetadata reports metadata that this program cannot read.
var errMetadata = errors.New("the metadata of the group's offset was written by a newer program, or is damaged")

// restore sets the state of a partition to the committed one. Metadata of other programs is none: everything behind
// the offset is not done.
func (p *position) restore(offset int64, metadata string) error {
	p.next, p.high = offset, offset
	text, ours := strings.CutPrefix(metadata, metadataVersion)
	if !ours {
		if len(metadata) > 2 && metadata[0] == 'w' && metadata[1] >= '0' && metadata[1] <= '9' {
			return errMetadata
		}
		return nil
	}
	raw, err := base64.RawStdEncoding.DecodeString(text)
	if err != nil {
		return errMetadata
	}
	bad := false
	read := func() int64 {
		v, n := binary.Uvarint(raw)
		if n <= 0 || v > 1<<40 {
			bad, raw = true, nil
			return 0
		}
		raw = raw[n:]
		return int64(v)
	}
	high := offset + read()
	for at := offset; len(raw) > 0 && !bad; {
		at += read()
		length, count := read(), int64(0)
		if length&1 != 0 {
			count = read()
		}
		if n := length >> 1; n == 0 || at+n > high || n > 1<<20 || count > 1<<30 {
			bad = true
		}
		for range length >> 1 {
			if bad {
				break
			}
			p.entries = append(p.entries, &entry{offset: at, count: int(count)})
			at++
		}
	}
	if bad {
		p.entries = nil
		return errMetadata
	}
	p.high = high
	return nil
}
