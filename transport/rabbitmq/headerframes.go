package rabbitmq

// The driver ends its connection at a header frame that it cannot read: one above frame_max, to which the broker does
// not hold itself when it adds headers, or one with tables that nest too deeply or have too many elements. The same
// message comes again on the next connection. So such a frame is replaced before the driver sees it.

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
)

const (
	frameHead, frameTail = 7, 1
	headerFrameType      = 2
	// maxDepth and maxElements are the driver's limits of a table.
	maxDepth, maxElements = 32, 8192
	// maxHeaderFrame is the largest header frame that is taken into memory.
	maxHeaderFrame = 64 << 20
	// keptHeader is the largest header that is left in a message whose headers cannot be read; keptHeaders and
	// keptBytes are the most of them.
	keptHeader, keptHeaders, keptBytes = 1 << 10, 1000, 32 << 10

	flagContentType, flagContentEncoding, flagHeaders = 1 << 15, 1 << 14, 1 << 13
)

// headerFrames hands on the bytes of the broker, with header frames that the driver can read. It is for one reader.
type headerFrames struct {
	in    *bufio.Reader
	limit atomic.Int64 // the negotiated frame_max; 0 = not known, or none
	rest  int64        // of the current frame, handed on as it is
	made  []byte       // a header frame, as far as it was not read yet
}

func (f *headerFrames) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if f.rest == 0 && len(f.made) == 0 {
		if err := f.next(); err != nil {
			if f.in.Buffered() > 0 {
				return f.in.Read(p) // the connection ended in the head of a frame
			}
			return 0, err
		}
	}
	if len(f.made) > 0 {
		n := copy(p, f.made)
		f.made = f.made[n:]
		return n, nil
	}
	n, err := f.in.Read(p[:min(int64(len(p)), f.rest)])
	f.rest -= int64(n)
	return n, err
}

// next looks at the next frame. A frame that is no header frame, that is above maxHeaderFrame, or that the driver can
// read, is handed on as it is (rest). Another one is taken in whole, and replaced (made). A header frame that is larger
// than the buffer is taken in first, to be looked at.
func (f *headerFrames) next() error {
	head, err := f.in.Peek(frameHead)
	if err != nil {
		return err
	}
	size := int64(binary.BigEndian.Uint32(head[3:])) + frameHead + frameTail
	switch {
	case head[0] != headerFrameType || size > maxHeaderFrame:
		f.rest = size
		return nil
	case size > int64(f.in.Size()):
		frame := make([]byte, size)
		if _, err := io.ReadFull(f.in, frame); err != nil {
			return err
		}
		if f.made = readableFrame(frame, int(f.limit.Load())); f.made == nil {
			f.made = frame
		}
		return nil
	}
	frame, err := f.in.Peek(int(size))
	if err != nil {
		return err
	}
	if f.made = readableFrame(frame, int(f.limit.Load())); f.made == nil {
		f.rest = size
		return nil
	}
	_, err = f.in.Discard(int(size))
	return err
}

// header is a field of a message's header table.
type header struct {
	name     string
	field    []byte // with its name and its type
	readable bool   // for the driver
}

// readableFrame returns the frame to put in the place of frame; nil if the driver can read it. A frame that is only too
// large loses the history that the broker wrote into it, and then the broker's counts. If that is not enough, the new
// frame has the small headers that can be read, and headerUnreadable. limit is frame_max; 0 = none.
func readableFrame(frame []byte, limit int) []byte {
	start, end, ok := headerTable(frame)
	if !ok {
		return nil
	}
	readable := readableElements(frame[start:end], true, 0)
	if readable && (limit == 0 || len(frame) <= limit) {
		return nil
	}
	headers, problem := splitHeaders(frame[start:end])
	if readable {
		for _, left := range [...]func(string) bool{historyHeader, brokersOwn} {
			fewer := slices.DeleteFunc(slices.Clone(headers), func(h header) bool { return left(h.name) })
			if start+totalBytes(fewer)+len(frame)-end <= limit {
				return withTable(frame, start, end, fewer)
			}
		}
		problem = fmt.Sprintf("its headers and properties have %d bytes, above the frame_max of this connection, %d", len(frame), limit)
	}
	room := keptBytes
	if limit > 0 {
		room = min(room, limit/4)
	}
	var kept []header
	for _, h := range headers {
		small := len(h.field) <= keptHeader || brokersOwn(h.name)
		if h.readable && small && len(h.field) <= room && len(kept) < keptHeaders && h.name != headerUnreadable {
			kept, room = append(kept, h), room-len(h.field)
		}
	}
	return withTable(frame, start, end, append(kept, textHeader(headerUnreadable, problem)))
}

// headerTable returns where the fields of a header frame's table are, without their length. It reports false if there
// is no table.
func headerTable(frame []byte) (start, end int, ok bool) {
	at, last := frameHead+14, len(frame)-frameTail // behind class, weight, size of the body and flags
	if at > last {
		return 0, 0, false
	}
	flags := binary.BigEndian.Uint16(frame[at-2:])
	for _, flag := range [...]uint16{flagContentType, flagContentEncoding} {
		if flags&flag != 0 && at < last {
			at += 1 + int(frame[at])
		}
	}
	if flags&flagHeaders == 0 || at+4 > last {
		return 0, 0, false
	}
	size := binary.BigEndian.Uint32(frame[at:])
	if start = at + 4; int64(size) > int64(last-start) {
		return 0, 0, false
	}
	return start, start + int(size), true
}

// splitHeaders returns the headers of a table, and why the driver cannot read them, if it cannot.
func splitHeaders(table []byte) (headers []header, problem string) {
	for len(table) > 0 {
		size, readable := -1, false
		at := 1 + int(table[0])
		if at < len(table) {
			size, readable = fieldSize(table[at:], 0)
		}
		if size < 0 {
			return headers, "its headers are malformed"
		}
		h := header{string(table[1:at]), table[:at+size], readable}
		if !readable && problem == "" {
			problem = fmt.Sprintf("header %s nests deeper than %d levels, or has more than %d elements in one", strconv.Quote(clip(h.name)), maxDepth, maxElements)
		}
		headers, table = append(headers, h), table[at+size:]
	}
	if len(headers) > maxElements && problem == "" {
		problem = fmt.Sprintf("it has %d headers, above %d", len(headers), maxElements)
	}
	return headers, problem
}

// fieldSize returns the bytes of the field at the beginning of b, with its type, and whether the driver can read it in
// a table of that depth; -1 if it is malformed.
func fieldSize(b []byte, depth int) (size int, readable bool) {
	if size = 1 + valueSize(b); size == 0 || size > len(b) {
		return -1, false
	}
	if b[0] != 'A' && b[0] != 'F' {
		return size, true
	}
	return size, depth < maxDepth && readableElements(b[5:size], b[0] == 'F', depth+1)
}

// readableElements reports whether the driver can read a table or an array of that depth. A table's elements have
// names.
func readableElements(in []byte, table bool, depth int) bool {
	n := 0
	for ; len(in) > 0; n++ {
		if table {
			name := 1 + int(in[0])
			if name >= len(in) {
				return false
			}
			in = in[name:]
		}
		size, ok := fieldSize(in, depth)
		if !ok {
			return false
		}
		in = in[size:]
	}
	return n <= maxElements
}

// valueSize returns the bytes of the value of the field at the beginning of b, without its type; -1 if there is no such
// type, or no size.
func valueSize(b []byte) int {
	switch b[0] {
	case 'V':
		return 0
	case 't', 'b', 'B':
		return 1
	case 's', 'u':
		return 2
	case 'I', 'i', 'f':
		return 4
	case 'D':
		return 5
	case 'l', 'd', 'T':
		return 8
	case 'S', 'x', 'A', 'F':
		if len(b) >= 5 {
			return 4 + int(min(binary.BigEndian.Uint32(b[1:]), maxHeaderFrame))
		}
	}
	return -1
}

func totalBytes(headers []header) int {
	n := 0
	for _, h := range headers {
		n += len(h.field)
	}
	return n
}

// textHeader makes a header of text.
func textHeader(name, text string) header {
	field := append([]byte{byte(len(name))}, name...)
	field = binary.BigEndian.AppendUint32(append(field, 'S'), uint32(len(text)))
	return header{name, append(field, text...), true}
}

// withTable returns frame with other headers.
func withTable(frame []byte, start, end int, headers []header) []byte {
	size := totalBytes(headers)
	out := make([]byte, 0, start+size+len(frame)-end)
	out = append(out, frame[:start-4]...)
	out = binary.BigEndian.AppendUint32(out, uint32(size))
	for _, h := range headers {
		out = append(out, h.field...)
	}
	out = append(out, frame[end:]...)
	binary.BigEndian.PutUint32(out[3:], uint32(len(out)-frameHead-frameTail))
	return out
}

// historyHeader reports whether the broker wrote a header about where the message was before.
func historyHeader(name string) bool {
	return name == "x-death" || strings.HasPrefix(name, "x-first-death-") || strings.HasPrefix(name, "x-last-death-")
}
