// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package patchbay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

func TestMain(m *testing.M) { nettest.Main(m) }

// tape records the members' calls, in order.
type tape struct {
	lines   []string
	fail    string            // "type verb" that fails
	configs map[string]string // the configuration of each "type verb"
	queued  int               // work that ADDs queued and that is not done yet
	flushed int               // how often queued work was done
	ns      string
}

func (l *tape) record(name string, r *plugin.Request) error {
	line := name + " " + string(r.Verb)
	l.lines = append(l.lines, line)
	l.configs[line] = string(r.Config)
	if line == l.fail {
		return spec.Errorf(spec.CodeTryAgain, "%s said no", name)
	}
	return nil
}

// member makes a plugin that adds one interface named after itself.
func (l *tape) member(name string) *plugin.Plugin {
	record := func(_ context.Context, r *plugin.Request) error { return l.record(name, r) }
	return &plugin.Plugin{
		Name: name,
		Add: func(ctx context.Context, r *plugin.Request) (*spec.Result, error) {
			if err := l.record(name, r); err != nil {
				return nil, err
			}
			l.queued++
			result := r.Prev()
			if result == nil {
				result = &spec.Result{}
			}
			result.Interfaces = append(result.Interfaces, spec.Interface{Name: name})
			return result, nil
		},
		Del: record, Check: record, GC: record, Status: record,
	}
}

func (l *tape) call(verb spec.Verb, conf string) ([]byte, error) {
	b := plugin.Builtin{NewSession: func() *plugin.Session {
		s := plugin.NewSession([]*plugin.Plugin{&Plugin, l.member("one"), l.member("two"), l.member("three")})
		s.OnDiscard(func() { l.queued = 0 })
		s.OnFlush(func(context.Context) error {
			l.flushed += min(l.queued, 1)
			l.queued = 0
			return nil
		})
		return s
	}}
	call := &spec.Call{Verb: verb, Path: []string{"/nonexistent"}, Config: []byte(conf)}
	if call.PerContainer() {
		call.ContainerID, call.NetNS, call.IfName = "c1", l.ns, "eth0"
	}
	return b.Invoke(context.Background(), name, call)
}

func newTape(t *testing.T) *tape {
	return &tape{configs: map[string]string{}, ns: nettest.NewNS(t, fmt.Sprintf("tape%d", time.Now().UnixNano()))}
}

const chain = `{"cniVersion":"1.1.0","name":"net","type":"patchbay","plugins":[
	{"type":"one","own":[1,2]},
	{"type":"two","capabilities":{"mac":true,"ips":false}},
	{"type":"three","args":{"cni":{"mine":1}}}]%s}`

func plain() string { return fmt.Sprintf(chain, "") }

func TestAddRunsInOrderWithOneFlush(t *testing.T) {
	l := newTape(t)
	out, err := l.call(spec.Add, plain())
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(l.lines, ","); got != "one ADD,two ADD,three ADD" {
		t.Errorf("calls: %s", got)
	}
	if l.flushed != 1 {
		t.Errorf("%d transactions, want 1", l.flushed)
	}
	r, err := spec.ParseResult(out, "")
	if err != nil || len(r.Interfaces) != 3 || r.Interfaces[2].Name != "three" { // each member got the result of the one before
		t.Errorf("result %s, %v", out, err)
	}
}

func TestMembersGetWhatARuntimeGives(t *testing.T) {
	l := newTape(t)
	_, err := l.call(spec.Add, fmt.Sprintf(chain, `,"runtimeConfig":{"mac":"02:00:00:00:00:01","ips":["10.0.0.1"],"other":1},"args":{"cni":{"outer":1}}`))
	if err != nil {
		t.Fatal(err)
	}
	var one, two, three map[string]json.RawMessage
	for line, into := range map[string]*map[string]json.RawMessage{"one ADD": &one, "two ADD": &two, "three ADD": &three} {
		if err := json.Unmarshal([]byte(l.configs[line]), into); err != nil {
			t.Fatal(err)
		}
	}
	if _, ok := one["runtimeConfig"]; ok || string(one["own"]) != "[1,2]" || string(one["name"]) != `"net"` || string(one["args"]) != `{"cni":{"outer":1}}` {
		t.Errorf("one got %s", l.configs["one ADD"])
	}
	if _, ok := one["prevResult"]; ok {
		t.Errorf("the first member got a prevResult: %s", one["prevResult"])
	}
	if string(two["runtimeConfig"]) != `{"mac":"02:00:00:00:00:01"}` || two["capabilities"] != nil {
		t.Errorf("two got %s", l.configs["two ADD"])
	}
	if string(three["args"]) != `{"cni":{"mine":1}}` {
		t.Errorf("three got %s", l.configs["three ADD"])
	}
}

func TestFailedAddDeletesInReverse(t *testing.T) {
	l := newTape(t)
	l.fail = "two ADD"
	_, err := l.call(spec.Add, plain())
	if err == nil || spec.ErrorCode(err) != spec.CodeTryAgain || !strings.Contains(err.Error(), `plugin type="two" failed (add): two said no`) {
		t.Errorf("error %v, code %d", err, spec.ErrorCode(err))
	}
	if got := strings.Join(l.lines, ","); got != "one ADD,two ADD,one DEL" {
		t.Errorf("calls: %s", got)
	}
	if l.flushed != 0 {
		t.Errorf("a failed ADD committed %d times", l.flushed)
	}
}

func TestDelRunsEveryone(t *testing.T) {
	l := newTape(t)
	l.fail = "two DEL"
	_, err := l.call(spec.Del, plain())
	if err == nil || !strings.Contains(err.Error(), "two said no") {
		t.Errorf("error %v", err)
	}
	if got := strings.Join(l.lines, ","); got != "three DEL,two DEL,one DEL" {
		t.Errorf("calls: %s", got)
	}
}

func TestGCAndStatus(t *testing.T) {
	l := newTape(t)
	l.fail = "one GC"
	_, err := l.call(spec.GC, fmt.Sprintf(chain, `,"cni.dev/valid-attachments":[{"containerID":"c1","ifname":"eth0"}]`))
	if err == nil {
		t.Error("GC lost a member's error")
	}
	if got := strings.Join(l.lines, ","); got != "one GC,two GC,three GC" {
		t.Errorf("calls: %s", got)
	}
	for _, key := range []string{"cni.dev/valid-attachments", "cni.dev/attachments"} {
		if !strings.Contains(l.configs["two GC"], `"`+key+`":[{"containerID":"c1","ifname":"eth0"}]`) {
			t.Errorf("two did not get %s: %s", key, l.configs["two GC"])
		}
	}
	l = newTape(t)
	l.fail = "two STATUS"
	if _, err := l.call(spec.Status, plain()); spec.ErrorCode(err) != spec.CodeTryAgain {
		t.Errorf("STATUS: %v", err)
	}
	if got := strings.Join(l.lines, ","); got != "one STATUS,two STATUS,three STATUS" {
		t.Errorf("calls: %s", got)
	}
}

func TestRefusals(t *testing.T) {
	for conf, want := range map[string]string{
		`{"cniVersion":"1.1.0","name":"net","type":"patchbay"}`:                                 "no plugins in list",
		`{"cniVersion":"1.1.0","name":"net","type":"patchbay","plugins":{}}`:                    "failed to load netconf",
		`{"cniVersion":"1.1.0","name":"net","type":"patchbay","plugins":[{"type":"one"},{}]}`:   "missing 'type'",
		`{"cniVersion":"1.1.0","name":"net","type":"patchbay","plugins":[{"type":"one"},3]}`:    "error parsing configuration",
		`{"cniVersion":"1.1.0","name":"net","type":"patchbay","plugins":[{"type":"../one"}]}`:   "invalid plugin name",
		`{"cniVersion":"1.1.0","name":"net","type":"patchbay","plugins":[{"type":"patchbay"}]}`: "cannot be a member",
		`{"cniVersion":"0.2.0","name":"net","type":"patchbay","plugins":[{"type":"one"}]}`:      "incompatible CNI versions",
		`{"cniVersion":"1.1.0","name":"net","type":"patchbay","plugins":[{"type":"absent"}]}`:   `failed to find plugin "absent"`,
	} {
		l := newTape(t)
		_, err := l.call(spec.Add, conf)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", conf, err, want)
		}
		if len(l.lines) > 0 && !strings.Contains(conf, "absent") {
			t.Errorf("%s: members ran: %v", conf, l.lines)
		}
	}
}

func TestPanicOfAMemberIsAnError(t *testing.T) {
	l := newTape(t)
	bad := &plugin.Plugin{Name: "bad", Add: func(context.Context, *plugin.Request) (*spec.Result, error) { panic("oops") }}
	b := plugin.Builtin{NewSession: func() *plugin.Session {
		return plugin.NewSession([]*plugin.Plugin{&Plugin, l.member("one"), bad})
	}}
	_, err := b.Invoke(context.Background(), name, &spec.Call{
		Verb: spec.Add, ContainerID: "c1", NetNS: l.ns, IfName: "eth0", Path: []string{"/nonexistent"},
		Config: []byte(`{"cniVersion":"1.1.0","name":"net","type":"patchbay","plugins":[{"type":"one"},{"type":"bad"}]}`),
	})
	var e *spec.Error
	if !errors.As(err, &e) || !strings.Contains(e.Msg, "plugin bad panicked: oops") {
		t.Errorf("error %v", err)
	}
	if got := strings.Join(l.lines, ","); got != "one ADD,one DEL" {
		t.Errorf("calls: %s", got)
	}
}
