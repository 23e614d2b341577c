// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"errors"
	"os"
	"regexp"
	"strings"

	"github.com/patchbay-net/patchbay/spec"
)

// answerFunc is what a wrong plugin does.
type answerFunc = func(p *right, call *spec.Call) ([]byte, error)

// on changes what a plugin does for one verb.
func on(verb spec.Verb, fn answerFunc) answerFunc {
	return func(p *right, call *spec.Call) ([]byte, error) {
		if call.Verb != verb {
			return p.do(call)
		}
		return fn(p, call)
	}
}

func idle(*right, *spec.Call) ([]byte, error) { return nil, nil }

// prints replaces a part of the answer.
func prints(pattern, text string) answerFunc {
	return func(p *right, call *spec.Call) ([]byte, error) {
		out, err := p.do(call)
		return regexp.MustCompile(pattern).ReplaceAll(out, []byte(text)), err
	}
}

// refuses makes a call fail under a condition, before the right plugin is asked.
func refuses(when func(p *right, call *spec.Call) bool) answerFunc {
	return func(p *right, call *spec.Call) ([]byte, error) {
		if when(p, call) {
			return nil, errors.New("refused")
		}
		return p.do(call)
	}
}

// sends changes a call.
func sends(change func(call *spec.Call)) answerFunc {
	return func(p *right, call *spec.Call) ([]byte, error) {
		other := *call
		change(&other)
		return p.do(&other)
	}
}

// coded changes the code of every error.
func coded(p *right, call *spec.Call) ([]byte, error) {
	out, err := p.do(call)
	if err != nil {
		err = &spec.Error{Code: 199, Msg: err.Error()}
	}
	return out, err
}

func has(call *spec.Call, text string) bool { return bytes.Contains(call.Config, []byte(text)) }

func gone(_ *right, call *spec.Call) bool {
	_, err := os.Stat(call.NetNS)
	return err != nil && call.NetNS != ""
}

// wrongPlugins returns a wrong plugin for each rule.
func wrongPlugins() []wrongPlugin {
	return append(append(wrongResults(), wrongRemovals()...), wrongRefusals()...)
}

// wrongResults break the rules about answers.
func wrongResults() []wrongPlugin {
	const name, mac, mtu = `"name": *"eth0"`, `"mac": *"[^"]*"`, `"mtu": *\d+`
	return []wrongPlugin{
		{"an ADD that makes nothing", "host-local", "life", "nothing exists after ADD", on(spec.Add, func(p *right, call *spec.Call) ([]byte, error) {
			out, err := p.do(call)
			if err == nil {
				_, err = p.as(spec.Del, call)
			}
			return out, err
		})},
		{"a result of another version", "host-local", "life", `result is of version "1.0.0"`, on(spec.Add, prints(`"cniVersion": *"1.1.0"`, `"cniVersion": "1.0.0"`))},
		{"text before the result", "host-local", "life", "not one JSON object", on(spec.Add, prints(`^`, "done: "))},
		{"a second result", "host-local", "life", "not one JSON object", on(spec.Add, prints(`$`, "{}"))},
		{"no result", "host-local", "life", "not one JSON object", on(spec.Add, prints(`(?s).*`, ""))},
		{"a result that is a list", "host-local", "life", "not one JSON object", on(spec.Add, prints(`(?s).+`, "[]"))},
		{"an address that is none", "host-local", "life", "10.99.0.x", on(spec.Add, prints(`10\.99\.0\.\d+/24`, "10.99.0.x/24"))},
		{"a CHECK that prints", "host-local", "life", "CHECK wrote to standard output", on(spec.Check, prints(`^`, "fine"))},
		{"a DEL that prints", "host-local", "life", "DEL wrote to standard output", on(spec.Del, prints(`^`, "{}"))},
		{"no versions", "host-local", "life", "VERSION: ", on(spec.Version, prints(`(?s).*`, "{}"))},
		{"interfaces of an IPAM plugin", "host-local", "life", "an IPAM result has no interfaces", on(spec.Add, prints(`^\s*{`, `{"interfaces": [{"name": "eth0"}],`))},
		{"an interface index of an IPAM plugin", "host-local", "life", "an IPAM result has no interface index", on(spec.Add, prints(`"address":`, `"interface": 0, "address":`))},
		{"no addresses of an IPAM plugin", "host-local", "life", "the IPAM result has no addresses", on(spec.Add, prints(`(?s).+`, `{"cniVersion": "1.1.0"}`))},
		{"an index without an interface", "macvlan", "life", "the result has no interface 7", on(spec.Add, prints(`"interface": 0`, `"interface": 7`))},
		{"a negative index", "macvlan", "life", "the result has no interface -1", on(spec.Add, prints(`"interface": 0`, `"interface": -1`))},
		{"another interface", "macvlan", "life", "interface eth7 of the result", on(spec.Add, prints(name, `"name": "eth7"`))},
		{"no interface of the container", "macvlan", "life", "no interface eth0 of the container", on(spec.Add, prints(`"sandbox": *"[^"]*"`, `"sandbox": ""`))},
		{"another namespace", "macvlan", "life", `sandbox is "/run/netns/x"`, on(spec.Add, prints(`"sandbox": *"[^"]*"`, `"sandbox": "/run/netns/x"`))},
		{"another MAC address", "macvlan", "life", "the result has mac 02:00:00:00:00:07", on(spec.Add, prints(mac, `"mac": "02:00:00:00:00:07"`))},
		{"another MTU", "macvlan", "life", "the result has mtu 1234", on(spec.Add, prints(mtu, `"mtu": 1234`))},
		{"another address", "macvlan", "life", "address 10.94.0.200/24 of the result is not on eth0", on(spec.Add, prints(`10\.94\.0\.\d+/24`, "10.94.0.200/24"))},
		{"a CHECK of an old version", "host-local", "0.3.1/life", "CHECK succeeded", on(spec.Check, idle)},
		{"a STATUS of an old version", "host-local", "1.0.0/life", "STATUS succeeded", on(spec.Status, idle)},
		{"the newest version always", "host-local", "version", `no match for`, on(spec.Version, prints(`"cniVersion": *"[^"]*"`, `"cniVersion": "1.1.0"`))},
		{"a CHECK that sees nothing", "host-local", "check-broken", "CHECK succeeded", on(spec.Check, idle)},
		{"an error without a code", "host-local", "check-broken", "an error needs a code and a message", on(spec.Check, func(p *right, call *spec.Call) ([]byte, error) {
			out, err := p.do(call)
			if err != nil {
				err = &spec.Error{Msg: "lost"}
			}
			return out, err
		})},
		{"an error without a message", "host-local", "check-broken", "an error needs a code and a message", on(spec.Check, func(p *right, call *spec.Call) ([]byte, error) {
			out, err := p.do(call)
			if err != nil {
				err = &spec.Error{Code: spec.CodeInternal}
			}
			return out, err
		})},
		{"an ADD that replaces the first", "host-local", "add-again", "ADD succeeded", on(spec.Add, func(p *right, call *spec.Call) ([]byte, error) {
			if p.calls[spec.Add] > 1 {
				_, _ = p.as(spec.Del, call) // the ADD fails if this does
			}
			return p.do(call)
		})},
	}
}

// wrongRemovals break the rules about DEL and GC.
func wrongRemovals() []wrongPlugin {
	bare := func(_ *right, call *spec.Call) bool { return !has(call, "subnet") }
	noResult := func(_ *right, call *spec.Call) bool { return !has(call, "prevResult") }
	noNetNS := func(_ *right, call *spec.Call) bool { return call.NetNS == "" }
	everybody := on(spec.Del, func(p *right, call *spec.Call) ([]byte, error) {
		for _, add := range p.added {
			if _, err := p.as(spec.Del, add); err != nil {
				return nil, err
			}
		}
		return p.do(call)
	})
	return []wrongPlugin{
		{"a DEL that does nothing", "host-local", "life", "left behind:", on(spec.Del, idle)},
		{"a DEL that leaves the interface", "macvlan", "life", "first sandbox: link", on(spec.Del, idle)},
		{"a DEL that fails the second time", "host-local", "del-again", "DEL failed", on(spec.Del, refuses(func(p *right, _ *spec.Call) bool { return len(p.added) == 0 || p.calls[spec.Del] > 2 }))},
		{"a DEL that wants the namespace", "host-local", "del-netns-gone", "DEL failed", on(spec.Del, refuses(gone))},
		{"a DEL that wants anything of before", "host-local", "del-netns-gone-no-result", "DEL failed", on(spec.Del, refuses(noResult))},
		{"a DEL that wants CNI_NETNS", "host-local", "del-no-netns", "DEL failed", on(spec.Del, refuses(noNetNS))},
		{"a DEL that wants the result", "host-local", "del-no-result", "DEL failed", on(spec.Del, refuses(noResult))},
		{"a DEL that wants the configuration", "host-local", "del-other-config", "DEL failed", on(spec.Del, refuses(bare))},
		{"a DEL that gives up", "host-local", "del-wrong-config", "left behind:", on(spec.Del, func(p *right, call *spec.Call) ([]byte, error) {
			if p.calls[spec.Del] > 1 {
				return nil, nil
			}
			return nil, errors.New("wrong configuration")
		})},
		{"a DEL of all attachments", "host-local", "two", "CHECK failed", everybody},
		{"a GC that does nothing", "host-local", "gc", "left behind:", on(spec.GC, idle)},
		{"a GC that fails if there is nothing", "host-local", "gc-all", "GC failed", on(spec.GC, refuses(func(p *right, _ *spec.Call) bool { return p.calls[spec.GC] > 1 }))},
		{"a GC that needs no list", "host-local", "gc-unlisted", "CHECK failed", on(spec.GC, sends(func(c *spec.Call) {
			c.Config = bytes.Replace(c.Config, []byte("{"), []byte(`{"cni.dev/valid-attachments":[],`), 1)
		}))},
		{"a GC that keeps nobody", "host-local", "gc-valid", "CHECK failed", on(spec.GC, sends(func(c *spec.Call) {
			c.Config = regexp.MustCompile(`"(cni\.dev/[a-z-]+)":\[[^]]*\]`).ReplaceAll(c.Config, []byte(`"$1":[]`))
		}))},
	}
}

// wrongRefusals break the rules about calls that a plugin must refuse.
func wrongRefusals() []wrongPlugin {
	accepts := func(p *right, call *spec.Call) ([]byte, error) {
		out, err := p.do(call)
		if err != nil {
			out, err = []byte(`{"cniVersion": "1.1.0", "ips": [{"address": "10.99.0.9/24"}]}`), nil
		}
		return out, err
	}
	return []wrongPlugin{
		{"torn JSON", "host-local", "refuse-config", "ADD succeeded", on(spec.Add, accepts)},
		{"torn JSON with another code", "host-local", "refuse-config", "code is 199, want 6", coded},
		{"a call without a container", "host-local", "refuse-environment", "ADD succeeded", on(spec.Add, accepts)},
		{"a call without a container with another code", "host-local", "refuse-environment", "code is 199, want 4", coded},
		{"a path as a container", "host-local", "refuse-names", "ADD succeeded", on(spec.Add, sends(func(c *spec.Call) {
			c.ContainerID = strings.NewReplacer("/", "", ".", "").Replace(c.ContainerID)
		}))},
		{"another version", "host-local", "refuse-version", "ADD succeeded", on(spec.Add, sends(func(c *spec.Call) {
			c.Config = bytes.Replace(c.Config, []byte(`"9.9.9"`), []byte(`"1.1.0"`), 1)
		}))},
		{"a namespace that is missing", "macvlan", "refuse-netns", "message is ", func(p *right, call *spec.Call) ([]byte, error) {
			if gone(p, call) {
				return nil, errors.New("no such file")
			}
			return p.do(call)
		}},
		{"its own namespace", "macvlan", "refuse-netns", "want 8", coded},
		{"a configuration that it accepts", "host-local", "refused_no_ranges", "accepted: ", on(spec.Add, accepts)},
		{"a refusal with another message", "host-local", "refused_no_ranges", "want \"no IP ranges specified\" in it", on(spec.Add, refuses(func(*right, *spec.Call) bool { return true }))},
		{"a refusal with another code", "macvlan", "refused_an_unknown_mode", "code is 199, want 7", coded},
		{"a refusal after the work", "host-local", "refused_no_ranges", "file /run/cni/late", on(spec.Add, func(p *right, call *spec.Call) ([]byte, error) {
			if err := errors.Join(os.MkdirAll("/run/cni", 0o700), os.WriteFile("/run/cni/late", nil, 0o600)); err != nil {
				return nil, err
			}
			return p.do(call)
		})},
	}
}
