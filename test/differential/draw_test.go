// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package differential

import (
	"cmp"
	"encoding/json"
	"math/rand/v2"
	"strings"

	"github.com/patchbay-net/patchbay/internal/test/nettest"
)

// gen draws a value.
type gen func(r *rand.Rand) any

// of draws one of several values. If the value is a gen, it draws a value from that gen.
func of(values ...any) gen {
	return func(r *rand.Rand) any {
		v := values[r.IntN(len(values))]
		if g, ok := v.(gen); ok {
			return g(r)
		}
		return v
	}
}

var flag = of(true, true, false)

// field is one key of a configuration, or an environment variable, which begins with "@". It has
// valid values, invalid values, and how often it is set.
type field struct {
	at   string // path: "ipam.routes"
	ok   gen
	bad  gen // nil if no value is refused
	odds int // in a hundred; 0 means 35, and less than 0 means never
}

// subject is a plugin, with the fields of its configurations.
type subject struct {
	plugin string
	title  string // set if a plugin has two subjects
	fields []field
	// prepare makes what an ADD expects on the node, and returns the previous result of a
	// chained plugin.
	prepare func(w *world) (prevResult map[string]any, err error)
	needs   []nettest.Feature // features without which the reference cannot work either
}

func (s *subject) name() string { return cmp.Or(s.title, s.plugin) }

// iptables is the program that the reference execs.
var iptables = []nettest.Feature{nettest.Program("iptables")}

// drawn is one case, from which the calls are made.
type drawn struct {
	call
	wrong string // the field with an invalid value
	first bool   // a chained plugin gets no previous result
}

// wrongOdds is the number of cases in a hundred in which one field has an invalid value.
const wrongOdds = 30

// draw draws the case with a number. It depends only on its arguments.
func (s *subject) draw(seed uint64, number int) drawn {
	r := rand.New(rand.NewPCG(seed, uint64(number)<<32|uint64(len(s.plugin))))
	d := drawn{call: call{plugin: s.plugin, id: "differential-1", netns: containerNS, ifname: "eth0"}}
	d.conf = map[string]any{"name": "differential", "type": s.plugin}
	for _, f := range s.fields {
		if r.IntN(100) < cmp.Or(f.odds, 35) {
			d.set(f.at, f.ok(r))
		}
	}
	if r.IntN(100) < wrongOdds {
		if f := s.fields[r.IntN(len(s.fields))]; f.bad != nil {
			d.set(f.at, f.bad(r))
			d.wrong = f.at
		}
	}
	return d
}

// set puts a value at a path of the configuration or into the environment.
func (d *drawn) set(at string, value any) {
	switch at {
	case "@args":
		d.args = value.(string)
		return
	case "@ifname":
		d.ifname = value.(string)
		return
	}
	if at == "prevResult" && value == "none" {
		d.first = true
		return
	}
	keys := strings.Split(at, ".")
	m := d.conf
	for _, k := range keys[:len(keys)-1] {
		next, ok := m[k].(map[string]any)
		if !ok {
			next = map[string]any{}
			m[k] = next
		}
		m = next
	}
	m[keys[len(keys)-1]] = clone(value)
}

// clone copies a JSON value. So no case writes into the tables.
func clone(value any) any {
	raw, err := json.Marshal(value)
	if err != nil {
		panic(err) // a table has a value that is not JSON
	}
	var out any
	if err := json.Unmarshal(raw, &out); err != nil {
		panic(err)
	}
	return out
}

// input returns all that a case sets, as text.
func (d *drawn) input() string {
	raw, err := json.Marshal(d.conf)
	if err != nil {
		panic(err)
	}
	return string(raw) + " CNI_ARGS=" + d.args + " CNI_IFNAME=" + d.ifname
}
