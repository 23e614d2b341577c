// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package iptnft

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"

	"github.com/patchbay-net/patchbay/internal/nft"
)

// KubeProxy is what kube-proxy has in one table, whether it runs or has left it. Sources: pkg/proxy/nftables/proxier.go and
// pkg/proxy/iptables/proxier.go of Kubernetes 1.36, and what earlier releases and the mode ipvs made.
type KubeProxy struct {
	Table  nft.Ref
	Whole  bool     // the table is kube-proxy's own
	Chains []string // that may go, sorted
	Jumps  int      // rules of iptables' own chains that lead there
	Used   []string // chains that rules of others lead to, which stay

	rules map[string][]nft.Rule // the jumps, by chain
	t     *nft.Table
}

// KubeProxies lists what kube-proxy has in nftables and iptables-nft. What it has in iptables-legacy and in ipvs is not in nftables. Chains of
// the kubelet (KUBE-FIREWALL, KUBE-KUBELET-CANARY, KUBE-IPTABLES-HINT) are not kube-proxy's.
func KubeProxies(c *nft.Conn) (list []*KubeProxy, err error) {
	for _, f := range families() {
		for _, name := range []string{tableKubeProxy, tableNAT, tableFilter, "mangle"} {
			k, err := kubeProxyIn(c, nft.Ref{Family: f, Table: name})
			if err != nil && c.Absent() {
				return nil, nil
			}
			if err != nil {
				return nil, err
			}
			if k.Whole || len(k.Chains)+len(k.Used) > 0 {
				list = append(list, k)
			}
		}
	}
	return list, nil
}

const tableKubeProxy = "kube-proxy"

func kubeProxyIn(c *nft.Conn, ref nft.Ref) (*KubeProxy, error) {
	k := &KubeProxy{Table: ref, rules: make(map[string][]nft.Rule)}
	got, err := c.ReadPresence(ref)
	if err != nil || !got[0].Found {
		return k, err
	}
	if k.t, err = c.ReadTable(ref.Family, ref.Table); err != nil || k.t == nil {
		return k, err
	}
	if ref.Table == tableKubeProxy {
		k.Whole = isKubeProxyTable(k.t)
		return k, nil
	}
	k.judge()
	return k, nil
}

// isKubeProxyTable reports whether a table of this name has the chains that kube-proxy makes in its first transaction.
func isKubeProxyTable(t *nft.Table) bool {
	has := func(name string, base bool) bool {
		return slices.ContainsFunc(t.Chains, func(c nft.Chain) bool { return c.Name == name && c.Base == base })
	}
	return has("nat-prerouting", true) && has("nat-postrouting", true) && has("services", false)
}

// judge sorts the chains that have names of kube-proxy into those that only it uses, and those that rules of others lead to.
func (k *KubeProxy) judge() {
	used := make(map[string]bool)
	for chain, rules := range k.t.Rules {
		for _, r := range rules {
			_, to, ok := r.Verdict()
			switch {
			case !ok || !ofKubeProxy(to) || ofKubeProxy(chain):
			case entersKubeProxy(k.Table.Table, chain, to):
				k.rules[chain] = append(k.rules[chain], r)
			default:
				k.use(to, used)
			}
		}
	}
	for _, c := range k.t.Chains {
		switch {
		case !ofKubeProxy(c.Name):
		case used[c.Name]:
			k.Used = append(k.Used, c.Name)
		default:
			k.Chains = append(k.Chains, c.Name)
		}
	}
	slices.Sort(k.Chains)
	slices.Sort(k.Used)
	for chain, rules := range k.rules {
		k.rules[chain] = slices.DeleteFunc(rules, func(r nft.Rule) bool { _, to, _ := r.Verdict(); return used[to] })
		k.Jumps += len(k.rules[chain])
	}
}

// use notes a chain that others use, and the chains to which its rules lead. Who marks packets to masquerade needs the rule that does it.
func (k *KubeProxy) use(chain string, used map[string]bool) {
	if used[chain] {
		return
	}
	used[chain] = true
	if chain == chainMarkMasq {
		k.use(chainKubePostrouting, used)
	}
	for _, r := range k.t.Rules[chain] {
		if _, to, ok := r.Verdict(); ok && ofKubeProxy(to) {
			k.use(to, used)
		}
	}
}

const (
	chainMarkMasq        = "KUBE-MARK-MASQ"
	chainKubePostrouting = "KUBE-POSTROUTING"
	chainKubeServices    = "KUBE-SERVICES"
)

// ofKubeProxy reports whether a chain has a name that only kube-proxy uses.
func ofKubeProxy(name string) bool {
	switch name {
	case chainKubeServices, chainMarkMasq, chainKubePostrouting, "KUBE-NODEPORTS", "KUBE-EXTERNAL-SERVICES", "KUBE-FORWARD", "KUBE-PROXY-FIREWALL",
		"KUBE-PROXY-CANARY", "KUBE-LOAD-BALANCER", "KUBE-NODE-PORT", "KUBE-SOURCE-RANGES-FIREWALL", "KUBE-IPVS-FILTER", "KUBE-IPVS-OUT-FILTER":
		return true
	}
	kind, hash, _ := strings.Cut(strings.TrimPrefix(name, "KUBE-"), "-")
	const base32, length = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", 16
	return strings.HasPrefix(name, "KUBE-") && slices.Contains([]string{"SVC", "SVL", "EXT", "FW", "XLB", "SEP"}, kind) &&
		len(hash) == length && strings.Trim(hash, base32) == ""
}

// entersKubeProxy reports whether kube-proxy itself makes a jump from a chain of iptables.
func entersKubeProxy(table, from, to string) bool {
	if table == tableNAT {
		return to == chainKubeServices && (from == chainPrerouting || from == "OUTPUT") || to == chainKubePostrouting && from == chainPostrouting
	}
	return slices.Contains([]string{"INPUT", "FORWARD", "OUTPUT"}, from) && to != chainMarkMasq
}

// Kinds returns the chains that may go, as users want to read them: those of Services are counted by kind.
func (k *KubeProxy) Kinds() (list []string) {
	count := make(map[string]int)
	for _, name := range k.Chains {
		if kind, _, ok := strings.Cut(strings.TrimPrefix(name, "KUBE-"), "-"); ok && len(kind) <= 3 {
			name = "KUBE-" + kind + "-*"
		}
		if count[name]++; count[name] == 1 {
			list = append(list, name)
		}
	}
	for i, name := range list {
		if strings.HasSuffix(name, "*") {
			list[i] = fmt.Sprintf("%s (%d)", name, count[name])
		}
	}
	return list
}

// Remove removes what may go. The jumps go first, so nothing that is left has an effect, and the next call does the rest.
func (k *KubeProxy) Remove(ctx context.Context, c *nft.Conn) error {
	for {
		w := &kubeProxyRemoval{ref: k.Table}
		c.Queue(w)
		if err := c.Commit(ctx); err != nil || !w.more {
			return err
		}
	}
}

// mostChains is how many chains one transaction empties or deletes: other transactions of the node wait meanwhile.
const mostChains = 2000

// kubeProxyRemoval is one transaction of Remove.
type kubeProxyRemoval struct {
	ref  nft.Ref
	more bool
}

// String describes the work in errors.
func (w *kubeProxyRemoval) String() string {
	return fmt.Sprintf("remove what kube-proxy left in table %s %s", nft.FamilyName(w.ref.Family), w.ref.Table)
}

// Plan returns the next step: the table, or the jumps, or the rules of some chains, or some chains.
func (w *kubeProxyRemoval) Plan(c *nft.Conn) (func(*nftables.Conn) error, error) {
	w.more = false
	k, err := kubeProxyIn(c, w.ref)
	if err != nil {
		return nil, err
	}
	t := &nftables.Table{Name: w.ref.Table, Family: w.ref.Family}
	if k.Whole {
		return func(enc *nftables.Conn) error { enc.DelTable(t); return nil }, nil
	}
	var todo []step
	for chain, rules := range k.rules {
		todo = append(todo, deleteRules(t, chain, rules)...)
	}
	if len(todo) == 0 {
		todo = k.emptied(t)
	}
	w.more = len(todo) > 0
	if len(todo) == 0 && len(k.Chains) > 0 {
		some := k.Chains[:min(len(k.Chains), mostChains)]
		w.more = len(some) < len(k.Chains)
		todo = append(todo, func(enc *nftables.Conn) error {
			for _, name := range some {
				enc.DelChain(&nftables.Chain{Name: name, Table: t})
			}
			return nil
		})
	}
	return run(todo), nil
}

// emptied returns the steps that empty some chains that have rules.
func (k *KubeProxy) emptied(t *nftables.Table) []step {
	full := slices.DeleteFunc(slices.Clone(k.Chains), func(name string) bool { return len(k.t.Rules[name]) == 0 })
	var todo []step
	for _, name := range full[:min(len(full), mostChains)] {
		todo = append(todo, func(enc *nftables.Conn) error {
			enc.FlushChain(&nftables.Chain{Name: name, Table: t})
			return nil
		})
	}
	return todo
}
