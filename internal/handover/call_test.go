// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"
)

// requestOf returns a request with these sizes in its header.
func requestOf(env, input uint64, body string) []byte {
	b := binary.NativeEndian.AppendUint64(nil, env)
	return append(binary.NativeEndian.AppendUint64(b, input), body...)
}

func TestParse(t *testing.T) {
	var c Call
	err := c.parse(requestOf(20, 2, "bridge\x00A=1\x00B=2\x00A=3\x00\x00{}"))
	if err != nil || c.Name != "bridge" || string(c.Input) != "{}" || !slices.Equal(c.Env, []string{"A=1", "B=2", ""}) {
		t.Errorf("%q %q %q, %v", c.Name, c.Env, c.Input, err)
	}
}

// A request that parse accepts has the name, the environment and the input at the places that its sizes
// give. parse refuses any other.
func FuzzParse(f *testing.F) {
	f.Add(uint64(8), uint64(0), "bridge\x00\x00")
	f.Add(uint64(0), uint64(2), "{}")
	f.Add(uint64(1), ^uint64(0), "\x00")
	f.Add(^uint64(6), uint64(8), "x")
	f.Add(uint64(3), uint64(0), "abc")
	f.Fuzz(func(t *testing.T, env, input uint64, body string) {
		var c Call
		if err := c.parse(requestOf(env, input, body)); err != nil {
			return
		}
		if env+input != uint64(len(body)) || body[env-1] != 0 || string(c.Input) != body[env:] || !strings.HasPrefix(body, c.Name+"\x00") {
			t.Errorf("env %d, input %d, %q: %+v", env, input, body, &c)
		}
	})
}
