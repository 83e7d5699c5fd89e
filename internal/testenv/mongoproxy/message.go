package mongoproxy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"
)

const (
	headerSize = 16
	opMsg      = 2013
	maxMessage = 64 << 20
)

// message is one message of the wire protocol, header included.
type message []byte

func (m message) id() uint32     { return binary.LittleEndian.Uint32(m[4:]) }
func (m message) opcode() uint32 { return binary.LittleEndian.Uint32(m[12:]) }

func readMessage(r io.Reader) (message, error) {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(size[:])
	if n < headerSize || n > maxMessage {
		return nil, fmt.Errorf("mongoproxy: a message says that it has %d bytes", n)
	}
	m := make(message, n)
	copy(m, size[:])
	_, err := io.ReadFull(r, m[4:])
	return m, err
}

// body returns the command of an OP_MSG as one document: its sequences of documents become arrays.
func (m message) body() (bson.Raw, error) {
	rest := m[headerSize+4:]
	var elements []byte
	for len(rest) > 4 {
		kind := rest[0]
		size := int(binary.LittleEndian.Uint32(rest[1:]))
		if size < 5 || size > len(rest)-1 {
			return nil, errors.New("mongoproxy: a section of a message is cut")
		}
		section := rest[1 : 1+size]
		rest = rest[1+size:]
		if kind == 0 {
			elements = append(elements, section[4:len(section)-1]...)
			continue
		}
		name, list, err := sequence(section[4:])
		if err != nil {
			return nil, err
		}
		elements = appendElement(elements, 0x04, name, document(list))
	}
	return document(elements), nil
}

// sequence reads a section of kind 1: its name, and its documents as the elements of an array.
func sequence(b []byte) (name string, elements []byte, err error) {
	for i, c := range b {
		if c == 0 {
			name, b = string(b[:i]), b[i+1:]
			break
		}
	}
	for n := 0; len(b) > 0; n++ {
		if len(b) < 5 || int(binary.LittleEndian.Uint32(b)) > len(b) {
			return "", nil, errors.New("mongoproxy: a document of a message is cut")
		}
		size := int(binary.LittleEndian.Uint32(b))
		elements = appendElement(elements, 0x03, strconv.Itoa(n), b[:size])
		b = b[size:]
	}
	return name, elements, nil
}

func appendElement(dst []byte, kind byte, name string, value []byte) []byte {
	dst = append(dst, kind)
	dst = append(dst, name...)
	dst = append(dst, 0)
	return append(dst, value...)
}

// document makes a document of elements.
func document(elements []byte) bson.Raw {
	out := make([]byte, 4, len(elements)+5)
	binary.LittleEndian.PutUint32(out, uint32(len(elements)+5))
	out = append(out, elements...)
	return append(out, 0)
}

// without returns doc without some of its fields.
func without(doc bson.Raw, drop func(name string) bool) (bson.Raw, error) {
	all, err := doc.Elements()
	if err != nil {
		return nil, fmt.Errorf("mongoproxy: %w", err)
	}
	var elements []byte
	for _, e := range all {
		if !drop(e.Key()) {
			elements = append(elements, e...)
		}
	}
	return document(elements), nil
}

// reply is an OP_MSG that answers to the message with this id.
func reply(to uint32, body bson.Raw) message {
	m := make(message, headerSize+5, headerSize+5+len(body))
	binary.LittleEndian.PutUint32(m, uint32(headerSize+5+len(body)))
	binary.LittleEndian.PutUint32(m[8:], to)
	binary.LittleEndian.PutUint32(m[12:], opMsg)
	return append(m, body...)
}
