// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package dhcprpc

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/bits"
)

// These are the numbers of gob's basic types (encoding/gob, "Type definitions"). The sender
// numbers its structs from 64 on.
const (
	gobBool   = 1
	gobInt    = 2
	gobUint   = 3
	gobBytes  = 5
	gobString = 6

	// Every gob decoder knows these numbers of wireType and its parts.
	gobWireType   = 16
	gobCommonType = 18
	gobSliceType  = 19
	gobStructType = 20
	gobFieldType  = 21
	gobFieldList  = 22
)

// maxMessage limits one message. A configuration has a few kilobytes.
const maxMessage = 4 << 20

// field is one field of a struct type.
type field struct {
	name string
	typ  int
}

// gobWriter appends to a stream. gobWriter supports only what a call needs: structs of
// strings, byte slices and unsigned numbers.
type gobWriter struct{ out []byte }

func appendUint(b []byte, v uint64) []byte {
	if v < 128 {
		return append(b, byte(v))
	}
	var data [8]byte
	binary.BigEndian.PutUint64(data[:], v)
	n := (bits.Len64(v) + 7) / 8
	return append(append(b, byte(-n)), data[8-n:]...)
}

func appendInt(b []byte, v int64) []byte {
	if v < 0 {
		return appendUint(b, uint64(^v)<<1|1)
	}
	return appendUint(b, uint64(v)<<1)
}

func appendString(b []byte, s string) []byte { return append(appendUint(b, uint64(len(s))), s...) }

// message appends a message and its length.
func (w *gobWriter) message(body []byte) {
	w.out = append(appendUint(w.out, uint64(len(body))), body...)
}

// define appends the definition of a struct type. In gob's terms it is wireType{StructT: {{Name,
// Id}, Field}}.
func (w *gobWriter) define(id int, name string, fields []field) {
	b := appendInt(nil, int64(-id))
	b = append(b, 3)    // wireType.StructT, the third field
	b = append(b, 1, 1) // structType.CommonType.Name
	b = appendString(b, name)
	b = appendInt(append(b, 1), int64(id)) // CommonType.Id
	b = append(b, 0, 1)                    // end of CommonType, then structType.Field
	b = appendUint(b, uint64(len(fields)))
	for _, f := range fields {
		b = appendString(append(b, 1), f.name)
		b = appendInt(append(b, 1), int64(f.typ))
		b = append(b, 0)
	}
	w.message(append(b, 0, 0)) // ends of structType and wireType
}

// value appends a struct of a defined type. Like gob, it leaves out zero values. Before each
// field it writes the distance from the field before.
func (w *gobWriter) value(id int, values ...any) {
	b := appendInt(nil, int64(id))
	delta := uint64(0)
	for _, v := range values {
		delta++
		text, _ := v.(string)
		number, _ := v.(uint64)
		switch {
		case text != "":
			b = appendString(appendUint(b, delta), text)
		case number != 0:
			b = appendUint(appendUint(b, delta), number)
		default:
			continue
		}
		delta = 0
	}
	w.message(append(b, 0))
}

// source is a stream or one message of a stream.
type source interface {
	io.Reader
	io.ByteReader
}

// readMessage reads the length of a message and returns the rest of the message.
func readMessage(r source) (*bytes.Reader, error) {
	size, err := readUint(r)
	if err != nil {
		return nil, err
	}
	if size > maxMessage {
		return nil, fmt.Errorf("message of %d bytes", size)
	}
	body := make([]byte, size)
	_, err = io.ReadFull(r, body)
	return bytes.NewReader(body), err
}

func readUint(r source) (uint64, error) {
	b, err := r.ReadByte()
	if err != nil || b < 128 {
		return uint64(b), err
	}
	n := -int(int8(b))
	if n > 8 {
		return 0, fmt.Errorf("number of %d bytes", n)
	}
	var data [8]byte
	_, err = io.ReadFull(r, data[8-n:])
	return binary.BigEndian.Uint64(data[:]), err
}

func readInt(r source) (int64, error) {
	v, err := readUint(r)
	if v&1 != 0 {
		return ^int64(v >> 1), err
	}
	return int64(v >> 1), err
}

func readBytes(m *bytes.Reader) ([]byte, error) {
	n, err := readUint(m)
	if err != nil {
		return nil, err
	}
	if n > uint64(m.Len()) {
		return nil, fmt.Errorf("%d bytes announced, %d there", n, m.Len())
	}
	b := make([]byte, n)
	_, err = io.ReadFull(m, b)
	return b, err
}
