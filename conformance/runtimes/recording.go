// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package runtimes

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"reflect"
	"strings"
)

// call is one call of a recorder.
type call struct {
	event         // without Stdin, Stdout and Exit if it ended before
	input  object // standard input; nil if that is no JSON object
	ended  bool
	during []string // calls that ran at the same time
}

// object is a JSON object whose numbers are kept as they are written.
type object map[string]any

func parseObject(data string) (o object) {
	d := json.NewDecoder(strings.NewReader(data))
	d.UseNumber()
	if d.Decode(&o) != nil {
		return nil
	}
	return o
}

// String names a call in reports.
func (c *call) String() string { return c.Plugin + " " + c.Verb }

// env is a variable of the call.
func (c *call) env(name string) string {
	for _, kv := range c.Env {
		if key, value, _ := strings.Cut(kv, "="); key == name {
			return value
		}
	}
	return ""
}

// readCalls reads what the recorders noted, from an offset.
func readCalls(file string, offset int) (calls []*call, size int, err error) {
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("read what the recorders noted: %w", err)
	}
	whole := data[:bytes.LastIndexByte(data, '\n')+1]
	calls, err = parseCalls(whole[min(offset, len(whole)):])
	return calls, len(whole), err
}

func parseCalls(data []byte) (calls []*call, err error) {
	running := map[int]*call{}
	for line := range bytes.Lines(data) {
		var e event
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, fmt.Errorf("read what the recorders noted: %w", err)
		}
		if e.What == "begin" {
			c := &call{event: e}
			for _, other := range running {
				c.during = append(c.during, other.String())
			}
			running[e.PID], calls = c, append(calls, c)
		}
		c := running[e.PID]
		switch {
		case c == nil: // it began in an earlier operation
		case e.What == "read":
			c.Stdin, c.input = e.Stdin, parseObject(e.Stdin)
		case e.What == "end":
			c.Stdout, c.Exit, c.ended = e.Stdout, e.Exit, true
			delete(running, e.PID)
		}
	}
	return calls, nil
}

// done is one operation of the runtime, and what its plugins were called for.
type done struct {
	operation
	exit           int // -1 if a signal ended it
	stdout, stderr string
	late           bool // the suite ended it, because it took too long
	calls          []*call
	files          []string // files of the runtime that name the container, afterwards
}

func (d *done) absent() bool { return d.exit == Absent }

// of returns the calls of some verb, in their order.
func (d *done) of(verb string) (out []*call) {
	for _, c := range d.calls {
		if c.Verb == verb {
			out = append(out, c)
		}
	}
	return out
}

// why says how an operation ended.
func (d *done) why() string {
	how := fmt.Sprintf("%s ended with the exit status %d", d.do, d.exit)
	switch {
	case d.late:
		how = d.do + " did not end in time"
	case d.exit < 0:
		how = d.do + " was ended by a signal"
	}
	if text := strings.TrimSpace(d.stderr); text != "" {
		how += ": " + end(text, 300)
	}
	return how
}

// end is the last part of a text: the error comes behind warnings.
func end(text string, n int) string {
	if len(text) > n {
		return "…" + text[len(text)-n:]
	}
	return text
}

func cut(text string, n int) string {
	if len(text) > n {
		return text[:n] + "…"
	}
	return text
}

// recording is what came out of one scenario.
type recording struct {
	*scenario
	newest   string            // version of most networks
	plugins  []string          // types, in the order of the network's list
	confs    []object          // their objects in the network's configuration
	bin      string            // CNI_PATH
	netns    map[string]string // identity of each container's namespace, by its path
	ownNetNS bool              // the runtime makes the namespaces
	ifName   string            // asked for; empty if the runtime chooses it
	done     []*done
}

// nth returns the operation with this index.
func (r *recording) nth(i int) *done { return r.done[i] }

// firstRound returns an operation's calls of DEL, without those that repeat them: containerd detaches when a sandbox is stopped and
// when it is removed, and by then has no result any more.
func (r *recording) firstRound(i, plugins int) []*call {
	calls := r.nth(i).of("DEL")
	return calls[:min(len(calls), plugins)]
}

// all returns the calls of every operation.
func (r *recording) all() (out []*call) {
	for _, d := range r.done {
		out = append(out, d.calls...)
	}
	return out
}

// conf returns a plugin's object in the configuration.
func (r *recording) conf(plugin string) object {
	for i, p := range r.plugins {
		if p == plugin {
			return r.confs[i]
		}
	}
	return nil
}

// failed returns the first of some operations that failed and should not have, or that succeeded and should not have.
func failed(operations []*done) *done {
	for _, d := range operations {
		if d.absent() || d.may {
			continue
		}
		if (d.exit == 0) == d.fails || d.late {
			return d
		}
	}
	return nil
}

// sameResult compares two results without their versions, and without what is empty, which some runtimes add.
func sameResult(a, b any) bool { return reflect.DeepEqual(bare(a), bare(b)) }

func bare(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for key, value := range v {
			if value := bare(value); value != nil && key != "cniVersion" {
				out[key] = value
			}
		}
		if len(out) == 0 {
			return nil
		}
		return out
	case []any:
		var out []any
		for _, e := range v {
			out = append(out, bare(e))
		}
		if out == nil {
			return nil
		}
		return out
	}
	return v
}
