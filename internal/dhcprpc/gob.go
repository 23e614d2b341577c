// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package dhcprpc

import (
	"errors"
	"fmt"
	"io"
)

// The numbers of gob's basic types (encoding/gob, "Type definitions"). Structs
// are numbered by the sender, from 64.
const (
	gobBool   = 1
	gobInt    = 2
	gobUint   = 3
	gobBytes  = 5
	gobString = 6

	// wireType and its parts have numbers of their own, which every gob decoder
	// knows from the start.
	gobWireType   = 16
	gobArrayType  = 17
	gobCommonType = 18
	gobSliceType  = 19
	gobStructType = 20
	gobFieldType  = 21
	gobFieldList  = 22
	gobMapType    = 23
)

// errGob is wrapped by every error about a stream.
var errGob = errors.New("malformed gob stream")

// maxMessage bounds one message: a configuration is a few kilobytes.
const maxMessage = 4 << 20

// field is one field of a struct type.
type field struct {
	name string
	typ  int
}

// gobWriter appends to a stream. It supports only what a call needs: structs of strings,
// byte slices and unsigned numbers.
type gobWriter struct{ out []byte }

func appendUint(b []byte, v uint64) []byte {
	if v < 128 {
		return append(b, byte(v))
	}
	n := 0
	for x := v; x > 0; x >>= 8 {
		n++
	}
	b = append(b, byte(-n))
	for i := n - 1; i >= 0; i-- {
		b = append(b, byte(v>>(8*i)))
	}
	return b
}

func appendInt(b []byte, v int64) []byte {
	if v < 0 {
		return appendUint(b, uint64(^v)<<1|1)
	}
	return appendUint(b, uint64(v)<<1)
}

func appendString(b []byte, s string) []byte { return append(appendUint(b, uint64(len(s))), s...) }

// message appends a message with its length.
func (w *gobWriter) message(body []byte) {
	w.out = append(appendUint(w.out, uint64(len(body))), body...)
}

// define sends a struct type: wireType{StructT: {{Name, Id}, Field}}.
func (w *gobWriter) define(id int, name string, fields []field) {
	b := appendInt(nil, int64(-id))
	b = append(b, 3)    // wireType.StructT, the third field
	b = append(b, 1, 1) // structType.CommonType.Name
	b = appendString(b, name)
	b = appendInt(append(b, 1), int64(id)) // CommonType.Id
	b = append(b, 0, 1)                    // end of CommonType, structType.Field
	b = appendUint(b, uint64(len(fields)))
	for _, f := range fields {
		b = appendString(append(b, 1), f.name)
		b = appendInt(append(b, 1), int64(f.typ))
		b = append(b, 0)
	}
	w.message(append(b, 0, 0)) // ends of structType and wireType
}

// value sends a struct of a defined type. It leaves zero values out, as gob does.
func (w *gobWriter) value(id int, values []any) {
	b := appendInt(nil, int64(id))
	delta := uint64(0)
	for _, v := range values {
		delta++
		var data []byte
		switch v := v.(type) {
		case string:
			if v != "" {
				data = appendString(nil, v)
			}
		case []byte:
			if len(v) > 0 {
				data = appendString(nil, string(v))
			}
		case uint64:
			if v != 0 {
				data = appendUint(nil, v)
			}
		}
		if data != nil {
			b = append(appendUint(b, delta), data...)
			delta = 0
		}
	}
	w.message(append(b, 0))
}

// readMessage reads one message without its length.
func readMessage(r io.Reader) ([]byte, error) {
	var head [9]byte
	if _, err := io.ReadFull(r, head[:1]); err != nil {
		return nil, err
	}
	n := 1
	if head[0] >= 128 {
		n = 1 - int(int8(head[0]))
		if n > len(head) {
			return nil, fmt.Errorf("%w: length of %d bytes", errGob, n-1)
		}
		if _, err := io.ReadFull(r, head[1:n]); err != nil {
			return nil, err
		}
	}
	d := gobReader{data: head[:n]}
	size, err := d.uint()
	if err != nil {
		return nil, err
	}
	if size > maxMessage {
		return nil, fmt.Errorf("%w: message of %d bytes", errGob, size)
	}
	body := make([]byte, size)
	_, err = io.ReadFull(r, body)
	return body, err
}

// gobReader takes values from one message.
type gobReader struct{ data []byte }

func (d *gobReader) byte() (byte, error) {
	if len(d.data) == 0 {
		return 0, fmt.Errorf("%w: it ends too early", errGob)
	}
	b := d.data[0]
	d.data = d.data[1:]
	return b, nil
}

func (d *gobReader) uint() (uint64, error) {
	b, err := d.byte()
	if err != nil || b < 128 {
		return uint64(b), err
	}
	n := -int(int8(b))
	if n > 8 || n > len(d.data) {
		return 0, fmt.Errorf("%w: number of %d bytes", errGob, n)
	}
	var v uint64
	for _, x := range d.data[:n] {
		v = v<<8 | uint64(x)
	}
	d.data = d.data[n:]
	return v, nil
}

func (d *gobReader) int() (int64, error) {
	v, err := d.uint()
	if v&1 != 0 {
		return ^int64(v >> 1), err
	}
	return int64(v >> 1), err
}

func (d *gobReader) bytes() ([]byte, error) {
	n, err := d.uint()
	if err != nil {
		return nil, err
	}
	if n > uint64(len(d.data)) {
		return nil, fmt.Errorf("%w: %d bytes announced, %d there", errGob, n, len(d.data))
	}
	b := d.data[:n]
	d.data = d.data[n:]
	return b, nil
}
