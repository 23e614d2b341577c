// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os/exec"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/policy"
)

// ipsetRules enforces a program with iptables and ipset, as kube-router does: FORWARD compares the
// packet with the address of each pod of this node, in a list. Each pod has a chain, which accepts
// established connections and what its node sends, and then jumps to the chain of each of its
// policies. A rule there sets a mark, and the end of the pod's chain rejects packets without it.
func ipsetRules(p *policy.Program) error {
	r := &ipsets{program: p, made: map[string]string{}}
	if err := r.sets(); err != nil {
		return err
	}
	r.line("*filter\n:KUBE-ROUTER-FORWARD -\n-A FORWARD -j KUBE-ROUTER-FORWARD")
	for i := range p.Chains {
		r.policy(i)
	}
	for i, pod := range p.Pods {
		r.pod(fmt.Sprint("KUBE-POD-FW-", i), pod)
	}
	r.line(`-A KUBE-ROUTER-FORWARD -m comment --comment "rule to explicitly ACCEPT traffic that comply to network policies" -m mark --mark 0x20000/0x20000 -j ACCEPT`)
	r.line("COMMIT")
	restore := exec.Command("iptables-nft-restore", "--noflush")
	restore.Stdin = &r.text
	if out, err := restore.CombinedOutput(); err != nil {
		return fmt.Errorf("make the rules of iptables: %w: %s", err, out)
	}
	return nil
}

// ipsets writes rules of a program.
type ipsets struct {
	program *policy.Program
	made    map[string]string // the names of the sets of ipset, by selector
	text    bytes.Buffer
}

func (r *ipsets) line(format string, args ...any) { fmt.Fprintf(&r.text, format+"\n", args...) }

// sets makes a set of ipset for each selector.
func (r *ipsets) sets() error {
	addrs := map[policy.Number][]policy.Address{}
	for _, a := range r.program.Addresses {
		addrs[a.Identity] = append(addrs[a.Identity], a)
	}
	for i, set := range r.program.Sets {
		name := fmt.Sprint("KUBE-SRC-", i)
		if err := netlink.IpsetCreate(name, "hash:ip", netlink.IpsetCreateOptions{}); err != nil {
			return fmt.Errorf("make ipset %s: %w", name, err)
		}
		r.made[set.Name] = name
		for _, member := range set.Members {
			for _, a := range addrs[member] {
				if err := netlink.IpsetAdd(name, &netlink.IPSetEntry{IP: a.Addr.AsSlice()}); err != nil {
					return fmt.Errorf("add to ipset %s: %w", name, err)
				}
			}
		}
	}
	return nil
}

// chain returns the name of a policy's chain.
func chainName(i int) string { return fmt.Sprint("KUBE-NWPLCY-", i) }

// policy writes the chain of a policy in one direction.
func (r *ipsets) policy(i int) {
	c, end := r.program.Chains[i], map[policy.Direction]string{policy.Ingress: "src", policy.Egress: "dst"}
	r.line(":%s -", chainName(i))
	for _, rule := range c.Rules {
		match := ""
		if rule.Set != "" {
			match = fmt.Sprintf("-m set --match-set %s %s ", r.made[rule.Set], end[c.Direction])
		}
		for _, ports := range portMatches(rule.Ports) {
			r.line(`-A %s -m comment --comment "rule of policy %s" %s%s-j MARK --set-xmark 0x10000/0x10000`, chainName(i), c.Policy, match, ports)
			r.line(`-A %s -m comment --comment "rule of policy %s" %s%s-m mark --mark 0x10000/0x10000 -j RETURN`, chainName(i), c.Policy, match, ports)
		}
	}
}

func portMatches(list []policy.Ports) (out []string) {
	for _, p := range list {
		out = append(out, fmt.Sprintf("-p %s --dport %d:%d ", p.Protocol, p.First, p.Last))
	}
	if len(list) == 0 {
		return []string{""}
	}
	return out
}

// pod writes the chain of a pod, and the rules that jump to it.
func (r *ipsets) pod(name string, pod policy.LocalPod) {
	addr := pod.Addresses[0]
	r.line(":%s -", name)
	r.line("-A %s -m conntrack --ctstate INVALID -j DROP", name)
	r.line("-A %s -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", name)
	r.line("-A %s -m addrtype --src-type LOCAL -d %s -j ACCEPT", name, addr)
	for d, flag := range map[policy.Direction]string{policy.Ingress: "-d", policy.Egress: "-s"} {
		for _, chain := range pod.Sides[d].Chains {
			r.line("-A %s %s %s -j %s", name, flag, addr, r.chainOf(chain))
		}
	}
	r.line("-A %s -m mark ! --mark 0x10000/0x10000 -m limit --limit 10/minute --limit-burst 10 -j NFLOG --nflog-group 100", name)
	r.line("-A %s -m mark ! --mark 0x10000/0x10000 -j REJECT", name)
	r.line("-A %s -j MARK --set-xmark 0/0x10000", name)
	r.line("-A %s -j MARK --set-xmark 0x20000/0x20000", name)
	comment := strings.ReplaceAll(pod.Name, "/", " ")
	for _, flag := range []string{"-d", "-s"} {
		r.line(`-A KUBE-ROUTER-FORWARD -m comment --comment "rule to jump traffic of pod %s to its chain" %s %s -j %s`, comment, flag, addr, name)
	}
	r.line(`-A KUBE-ROUTER-FORWARD -m physdev --physdev-is-bridged -m comment --comment "rule to jump traffic of pod %s to its chain" -d %s -j %s`, comment, addr, name)
}

func (r *ipsets) chainOf(name string) string {
	for i, c := range r.program.Chains {
		if c.Name == name {
			return chainName(i)
		}
	}
	return "DROP" // a program names only its own chains
}
