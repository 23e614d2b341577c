// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/cli/gc"
	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nft/iptnft"
	"github.com/patchbay-net/patchbay/internal/services"
	svc "github.com/patchbay-net/patchbay/internal/services/enforce"
)

// kubeProxy shows what kube-proxy left on this node and, with --apply, removes it.
func (c *gcCommand) kubeProxy() error {
	if c.Args.Network != "" || c.All || len(c.Valid) > 0 || c.From != "" {
		return usage("patchbay gc --kube-proxy [--apply]", "--kube-proxy is about the whole node, and goes with no NETWORK, --from, --valid or --all")
	}
	if err := needRoot("gc --kube-proxy"); err != nil {
		return err
	}
	s := c.app.session()
	defer s.Close()
	fw := kernel.OfSession(s).NFT
	left, err := iptnft.KubeProxies(fw)
	if err != nil {
		return err
	}
	stays, err := c.app.needsKubeProxy(fw)
	if err != nil {
		return err
	}
	list := []*gc.Candidate{}
	for _, k := range left {
		list = append(list, c.collectKubeProxy(fw, k, stays)...)
	}
	for _, l := range list {
		if l.Error != "" {
			err = errors.Join(err, errors.New(l.Error))
		}
	}
	return errors.Join(c.printKubeProxy(list), err)
}

// needsKubeProxy says why kube-proxy's rules must stay, or returns "".
func (a *app) needsKubeProxy(fw *nft.Conn) (why string, err error) {
	if pids := running(a.paths.Proc, "kube-proxy"); len(pids) > 0 {
		return "kube-proxy runs on this node (process " + strings.Join(pids, ", ") + "), and would write them again", nil
	}
	err = svc.WithView(fw, func(v *svc.View) error {
		switch {
		case !v.Exists():
			why = "patchbay does not do the Services of this node, so nothing else translates them"
			return nil
		case v.Fault() != "":
			why = "what patchbay does for Services is not known: patchbay doctor --check services"
			return nil
		}
		why = ""
		some, err := v.Addresses(services.ClusterIP)
		if err == nil && len(some) == 0 {
			why = "patchbay has loaded no Service on this node yet"
		}
		return err
	})
	return why, err
}

// running returns the ids of the processes that run a program in this network namespace, also those in containers with it.
func running(proc, program string) (pids []string) {
	here, _ := os.Stat(filepath.Join(proc, "self/ns/net"))           // without it, every process counts
	files, _ := filepath.Glob(filepath.Join(proc, "[0-9]*", "comm")) // the pattern is sound
	for _, f := range files {
		dir := filepath.Dir(f)
		if comm, err := os.ReadFile(f); err != nil || strings.TrimSpace(string(comm)) != program {
			continue
		}
		if of, err := os.Stat(filepath.Join(dir, "ns/net")); err == nil && here != nil && !os.SameFile(of, here) {
			continue
		}
		pids = append(pids, filepath.Base(dir))
	}
	return pids
}

// collectKubeProxy judges what one table has, and removes it with --apply. What others use is a candidate of its own.
func (c *gcCommand) collectKubeProxy(fw *nft.Conn, k *iptnft.KubeProxy, stays string) (list []*gc.Candidate) {
	table := nft.FamilyName(k.Table.Family) + " " + k.Table.Table
	if len(k.Used) > 0 {
		list = append(list, &gc.Candidate{State: gc.Unsure, Why: "rules that are not kube-proxy's lead there", Objects: chainsOf(table, k.Used)})
	}
	dead := &gc.Candidate{State: gc.Dead, Why: "kube-proxy left it", Objects: chainsOf(table, k.Kinds())}
	if k.Whole {
		dead.Objects = []gc.Object{{Kind: "table", Name: table}}
	}
	if len(dead.Objects) == 0 {
		return list
	}
	if stays != "" {
		dead.State, dead.Why = gc.Unsure, stays
	} else if c.Apply {
		if err := k.Remove(c.app.ctx, fw); err != nil {
			dead.Error = fmt.Sprintf("remove what kube-proxy left in table %s: %v", table, err)
		}
		dead.Removed = dead.Error == ""
	}
	return append(list, dead)
}

func chainsOf(table string, names []string) (list []gc.Object) {
	for _, name := range names {
		list = append(list, gc.Object{Kind: "chain", Name: table + " " + name})
	}
	return list
}

// printKubeProxy prints the candidates as gc prints others.
func (c *gcCommand) printKubeProxy(list []*gc.Candidate) error {
	if c.JSON {
		return c.app.printJSON(list)
	}
	t := newTable("STATE", "WHY", "OBJECT")
	for _, l := range list {
		state, why := stateText(l.State, l.Removed, c.Apply), l.Why
		for _, o := range l.Objects {
			t.row(state, why, o.Kind+" "+o.Name)
			state, why = "", ""
		}
	}
	text := t.String()
	if len(list) == 0 {
		text = "kube-proxy left nothing in nftables\n"
	}
	err := c.app.print(text)
	if slices.ContainsFunc(list, func(l *gc.Candidate) bool { return l.State == gc.Dead && !c.Apply }) {
		c.app.hint("patchbay gc --kube-proxy --apply removes it")
	}
	if legacy, lerr := iptnft.LegacyTables(c.app.paths.Proc); lerr == nil && len(legacy) > 0 {
		c.app.hint("iptables-legacy has tables, too, which gc cannot read: kube-proxy --cleanup removes its rules there, and those of the mode ipvs")
	}
	return err
}
