// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

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

// onHost does what a DEL does in the container's namespace in the plugin's own one, if it gets no other.
func onHost(do func(netlink.Link) error) answerFunc {
	return on(spec.Del, func(p *right, call *spec.Call) ([]byte, error) {
		if call.NetNS == ownNetNS {
			if link, err := netlink.LinkByName(call.IfName); err == nil {
				return nil, do(link)
			}
		}
		return p.do(call)
	})
}

func gone(_ *right, call *spec.Call) bool {
	_, err := os.Stat(call.NetNS)
	return err != nil && call.NetNS != ""
}

// wrongPlugins returns a wrong plugin for each rule.
func wrongPlugins() []wrongPlugin {
	return slices.Concat(wrongResults(), wrongRemovals(), wrongRefusals(), wrongDelegations(), wrongForUsers())
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
		{"an address before that is lost", "tuning", "life", "does not pass on address 10.93.0.2/24", on(spec.Add, prints(`(?s)"ips":.*?\]`, `"ips": []`))},
		{"the MTU of before", "tuning", "life", "the result has mtu 1500, the kernel 1400", on(spec.Add, prints(mtu, `"mtu": 1500`))},
		{"an interface before that is lost", "tuning", "life", "does not pass on interface eth0", on(spec.Add, prints(name, `"name": "eth7"`))},
		{"a VERSION that wants a network", "host-local", "version-input", "VERSION failed", on(spec.Version, refuses(func(_ *right, call *spec.Call) bool { return !has(call, `"name"`) }))},
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
		{"a DEL that leaves the MTU", "tuning", "life", "changed veth eth0 mtu from 1500 to 1400", on(spec.Del, idle)},
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
		{"a DEL of all interfaces", "host-local", "del-other-ifname", "CHECK failed", everybody},
		{"a DEL of all networks", "host-local", "del-other-network", "CHECK failed", everybody},
		{"a DEL of whom the path leads to", "host-local", "del-recycled", "CHECK failed", everybody},
		{"a DEL of the host's interface", "macvlan", "del-netns-host", "link veth eth0\n", onHost(netlink.LinkDel)},
		{"a DEL of the host's MTU", "tuning", "del-netns-host", "attribute veth eth0 mtu 1500", onHost(func(l netlink.Link) error { return netlink.LinkSetMTU(l, 1280) })},
		{"a DEL of the host's lo", "loopback", "del-netns-host", "link lo is up", onHost(netlink.LinkSetDown)},
		{"a GC of all networks", "host-local", "gc-other-network", "CHECK failed", on(spec.GC, sends(func(c *spec.Call) {
			c.Config = bytes.Replace(c.Config, []byte(`"other"`), []byte(`"`+Network+`"`), 1)
		}))},
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
		{"an error without an object", "host-local", "error-object", "has no error object", func(p *right, call *spec.Call) ([]byte, error) {
			out, err := p.do(call)
			if err != nil {
				err = errors.New(err.Error())
			}
			return out, err
		}},
		{"an interface in the way", "macvlan", "add-occupied", "ADD succeeded", on(spec.Add, accepts)},
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

// wrongDelegations break the rules about a plugin that calls an IPAM plugin.
func wrongDelegations() []wrongPlugin {
	second := func(fn answerFunc) answerFunc { // the first DEL comes before the suite's IPAM plugin
		return func(p *right, call *spec.Call) ([]byte, error) {
			if p.calls[spec.Del] < 2 {
				return p.do(call)
			}
			return fn(p, call)
		}
	}
	return []wrongPlugin{
		{"a DEL without the IPAM plugin", "macvlan", "delegate", "did not call its IPAM plugin with DEL", on(spec.Del, second(idle))},
		{"a part of the configuration", "macvlan", "delegate", "did not get the complete configuration", sends(func(c *spec.Call) {
			c.Config = bytes.Replace(c.Config, []byte(`"name":"`+Network+`"`), []byte(`"name":"part"`), 1)
		})},
		{"another container for the IPAM plugin", "macvlan", "delegate", "did not get the variables of the call", on(spec.Del, second(sends(func(c *spec.Call) { c.ContainerID += "x" })))},
		{"an ADD without an address", "macvlan", "delegate-add-fails", "ADD succeeded", on(spec.Add, func(p *right, call *spec.Call) ([]byte, error) {
			_, _ = p.do(call)
			return []byte(`{"cniVersion": "1.1.0"}`), nil
		})},
		{"a CHECK that asks nobody", "macvlan", "delegate-fails", "CHECK succeeded", on(spec.Check, idle)},
		{"a GC that asks nobody", "macvlan", "delegate-gc", "did not call its IPAM plugin with GC", on(spec.GC, idle)},
		{"a STATUS that asks nobody", "macvlan", "delegate-status", "did not call its IPAM plugin with STATUS", on(spec.Status, idle)},
		{"a STATUS that knows nothing", "macvlan", "status-lost", "STATUS succeeded", on(spec.Status, idle)},
		{"a path to the IPAM plugin", "macvlan", "delegate-path", "ADD succeeded", on(spec.Add, sends(func(c *spec.Call) {
			c.Config = regexp.MustCompile(`"type":"\.\./[^/]*/`).ReplaceAll(c.Config, []byte(`"type":"`))
		}))},
	}
}

// wrongForUsers break the rules that no specification has, and the one about calls at the same time.
func wrongForUsers() []wrongPlugin {
	var alone sync.Mutex
	return []wrongPlugin{
		{"one at a time", "host-local", "together", "two calls of ADD at the same time", func(p *right, call *spec.Call) ([]byte, error) {
			if !alone.TryLock() {
				return nil, errors.New("another call runs")
			}
			defer alone.Unlock()
			time.Sleep(20 * time.Millisecond)
			return p.do(call)
		}},
		{"one address for all", "host-local", "together", "both attachments have the address 10.99.0.7", on(spec.Add, prints(`10\.99\.0\.\d+/24`, "10.99.0.7/24"))},
		{"nothing is removed after a kill", "host-local", "killed", "ADD was killed 6 times", func(p *right, call *spec.Call) ([]byte, error) {
			if call.Verb == spec.GC || call.Verb == spec.Del && p.calls[spec.Del] > 1 {
				return nil, nil
			}
			out, err := p.do(call)
			select { // else it may be killed only before it has done anything
			case <-p.ctx.Done():
				return nil, p.ctx.Err()
			case <-time.After(50 * time.Millisecond):
				return out, err
			}
		}},
		{"a DEL that fails after a kill", "host-local", "killed", "then DEL failed", on(spec.Del, refuses(func(p *right, _ *spec.Call) bool { return p.calls[spec.Del] > 1 }))},
		{"a port of every address", "portmap", "ports-elsewhere", "does not reach 203.0.113.2:18080 through the host", on(spec.Add, func(p *right, call *spec.Call) ([]byte, error) {
			out, err := p.do(call)
			return out, errors.Join(err, takeEverywhere(18080))
		})},
		{"a DEL that wants its files whole", "host-local", "torn", "DEL failed", on(spec.Del, refuses(func(p *right, _ *spec.Call) bool { return p.calls[spec.Add] == 1 }))},
		{"a link that believes a container", "bridge", "no-router", "believes router advertisements: accept_ra is 2", on(spec.Add, func(p *right, call *spec.Call) ([]byte, error) {
			out, err := p.do(call)
			files, _ := filepath.Glob("/proc/sys/net/ipv6/conf/*/accept_ra") // a valid pattern
			for _, file := range files {
				err = errors.Join(err, os.WriteFile(file, []byte("2"), 0))
			}
			return out, err
		})},
	}
}

// takeEverywhere sends what comes to a port of any address to a container, as portmap did before CVE-2025-67499 was
// found.
func takeEverywhere(port uint16) error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	table := c.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: "everywhere"})
	chain := c.AddChain(&nftables.Chain{
		Name: "prerouting", Table: table, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest,
	})
	c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binary.BigEndian.AppendUint16(nil, port)},
		&expr.Immediate{Register: 1, Data: []byte{10, 95, 0, 2}},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1},
	}})
	return c.Flush()
}
