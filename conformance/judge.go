// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/spec"
)

// cmdResult checks that the first attachment's result follows the specification.
func cmdResult(ts *testscript.TestScript, neg bool, args []string) {
	w := theWorld(ts)
	p, err := w.place("")
	ts.Check(err)
	if p.Result == nil {
		ts.Fatalf("there was no ADD")
	}
	if w.suite.Subject.Kind == "ipam" {
		ts.Check(ipamResult(p.Result))
		return
	}
	if !spec.AtLeast(w.version, "0.3.0") {
		return // results before 0.3.0 have no interfaces to check
	}
	if w.suite.Subject.Kind == "chained" {
		ts.Check(passedOn(p))
	}
	ts.Check(inside(p.NetNS, func() error { return interfaceResult(p) }))
}

// ipamResult checks that an IPAM result has no "interfaces" and no "ips[].interface" (SPEC.md
// section 4).
func ipamResult(r *spec.Result) error {
	if len(r.Interfaces) > 0 {
		return fmt.Errorf("an IPAM result has no interfaces: %v", r.Interfaces)
	}
	for _, ip := range r.IPs {
		if ip.Interface != nil {
			return fmt.Errorf("an IPAM result has no interface index: %s has %d", ip.Address, *ip.Interface)
		}
	}
	if len(r.IPs) == 0 {
		return fmt.Errorf("the IPAM result has no addresses")
	}
	return nil
}

// passedOn checks that the result of a chained plugin has the interfaces and addresses of the previous result. The
// plugin may have changed anything else of them.
func passedOn(p *place) error {
	if p.prev == nil {
		return nil
	}
	for _, want := range p.prev.Interfaces {
		same := func(i spec.Interface) bool { return i.Name == want.Name && i.Sandbox == want.Sandbox }
		if !slices.ContainsFunc(p.Result.Interfaces, same) {
			return fmt.Errorf("the result does not pass on interface %s of prevResult", want.Name)
		}
	}
	for _, want := range p.prev.IPs {
		same := func(ip spec.IPConfig) bool { return ip.Address == want.Address }
		if !slices.ContainsFunc(p.Result.IPs, same) {
			return fmt.Errorf("the result does not pass on address %s of prevResult", want.Address)
		}
	}
	return nil
}

// interfaceResult compares an interface plugin's result with what is in the namespace.
func interfaceResult(p *place) error {
	found := false
	for _, i := range p.Result.Interfaces {
		if i.Sandbox == "" {
			continue
		}
		if i.Sandbox != p.NetNS {
			return fmt.Errorf("interface %s: sandbox is %q, CNI_NETNS was %q", i.Name, i.Sandbox, p.NetNS)
		}
		if err := asKernel(i); err != nil {
			return err
		}
		found = found || i.Name == p.IfName
	}
	if !found {
		return fmt.Errorf("no interface %s of the container in the result", p.IfName)
	}
	for _, ip := range p.Result.IPs {
		if err := hasAddress(p.Result, ip); err != nil {
			return err
		}
	}
	return nil
}

func asKernel(i spec.Interface) error {
	link, err := netlink.LinkByName(i.Name)
	if err != nil {
		return fmt.Errorf("interface %s of the result: %w", i.Name, err)
	}
	const none = "00:00:00:00:00:00" // MAC address of lo
	if mac := cmp.Or(link.Attrs().HardwareAddr.String(), none); i.Mac != "" && !strings.EqualFold(mac, i.Mac) {
		return fmt.Errorf("interface %s: the result has mac %s, the kernel %s", i.Name, i.Mac, mac)
	}
	if i.MTU != 0 && i.MTU != link.Attrs().MTU {
		return fmt.Errorf("interface %s: the result has mtu %d, the kernel %d", i.Name, i.MTU, link.Attrs().MTU)
	}
	return nil
}

// hasAddress checks that the result's interface has the address ip.
func hasAddress(r *spec.Result, ip spec.IPConfig) error {
	if ip.Interface == nil {
		return nil
	}
	of := r.Of(ip)
	if of == nil {
		return fmt.Errorf("address %s: the result has no interface %d", ip.Address, *ip.Interface)
	}
	if of.Sandbox == "" {
		return nil
	}
	name := of.Name
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	addrs, err := nl.Retry(func() ([]netlink.Addr, error) { return netlink.AddrList(link, netlink.FAMILY_ALL) })
	if err != nil {
		return err
	}
	for _, a := range addrs {
		bits, _ := a.Mask.Size()
		addr, _ := netip.AddrFromSlice(a.IP)
		if netip.PrefixFrom(addr.Unmap(), bits) == ip.Address {
			return nil
		}
	}
	return fmt.Errorf("address %s of the result is not on %s", ip.Address, name)
}

// refused checks that the plugin refuses one configuration before it does any work.
func (s Suite) refused(t tester, r Refusal) {
	s.Subject.Conf = merge(s.Subject.Conf, r.Conf)
	w := newWorld(t, &s, s.Subject.newest())
	req := &request{verb: spec.Add, opts: map[string]string{}}
	if r.Args != "" {
		req.opts["args"] = r.Args
	}
	out, err := w.runFor(w.places["first"], req)
	if err == nil {
		t.Fatalf("accepted: %s", bytes.TrimSpace(out))
	}
	e := spec.AsError(err)
	if r.Code != 0 && uint(e.Code) != r.Code {
		t.Errorf("code is %d, want %d", e.Code, r.Code)
	}
	if !strings.Contains(e.Error(), r.Msg) {
		t.Errorf("message is %q, want %q in it", e.Error(), r.Msg)
	}
	if left := w.Left(); left != "" {
		t.Errorf("left behind:\n%s", left)
	}
}
