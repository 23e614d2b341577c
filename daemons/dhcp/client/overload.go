// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package client

import "slices"

// These are places in a DHCPv4 message (RFC 2131, 2), and options of RFC 2132.
const (
	snameAt, fileAt, cookieAt, optionsAt = 44, 108, 236, 240

	optPad, optOverload, optEnd = 0, 52, 255
)

// unfold appends the options in the fields file and sname to a message's other options, if option 52 (overload) says
// that these fields have options. The order is that of RFC 2131 (4.1). If the result would be longer than most,
// unfold returns the message unchanged.
func unfold(message []byte, most int) []byte {
	if len(message) < optionsAt {
		return message
	}
	options, overload := split(message[optionsAt:])
	if overload == 0 {
		return message
	}
	out := slices.Concat(message[:optionsAt], options)
	for _, field := range [...]struct {
		bit      byte
		from, to int
	}{{1, fileAt, cookieAt}, {2, snameAt, fileAt}} {
		if overload&field.bit != 0 {
			more, _ := split(message[field.from:field.to])
			out = append(out, more...)
			clear(out[field.from:field.to])
		}
	}
	if len(out)+1 > most {
		return message
	}
	return append(out, optEnd)
}

// split returns the options of a field without padding and option 52, and the value of that option. split ends at
// the option end, or at one that is cut short.
func split(field []byte) (options []byte, overload byte) {
	for len(field) > 0 && field[0] != optEnd {
		if field[0] == optPad {
			field = field[1:]
			continue
		}
		if len(field) < 2 || len(field) < 2+int(field[1]) {
			break
		}
		next := 2 + int(field[1])
		if field[0] == optOverload && field[1] == 1 {
			overload = field[2]
		} else {
			options = append(options, field[:next]...)
		}
		field = field[next:]
	}
	return options, overload
}
