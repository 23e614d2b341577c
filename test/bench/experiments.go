// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// experiment measures one thing on fresh nodes.
type experiment struct {
	name, about string
	run         func(*lab) error
}

var experiments = [...]experiment{
	{"size", "bytes of each plugin directory", (*lab).size},
	{"version", "CPU of answering VERSION", (*lab).version},
	{"latency", "ADD, CHECK and DEL of the full chain, alternating", (*lab).latency},
	{"bridge", "the same of bridge and host-local alone", (*lab).bridgeAlone},
	{"processes", "processes of one ADD and one DEL", (*lab).processes},
	{"burst", "pods a second with 1, 4 and 16 callers", (*lab).bursts},
	{"ipv6", "ptp with IPv6 beside IPv4", (*lab).ipv6},
	{"links", "macvlan, with IPv4 and IPv6, and ipvlan", (*lab).links},
	{"dhcp", "macvlan with addresses from a DHCP server", (*lab).dhcp},
	{"reservations", "host-local at 60,000 reservations", (*lab).reservations},
	{"leaks", "what is left after lost namespaces and killed plugins", (*lab).leaks},
	{"packets", "traffic between pods, on one node and between two", (*lab).packets},
	{policiesExperiment, "traffic between pods with network policies", (*lab).policies},
	{portsExperiment, "traffic of containers while up to 1,000 have a published port", (*lab).ports},
	{accountExperiment, "the phases of an ADD", (*lab).account},
	{"growth", "ADD and DEL while up to 5,000 attachments stand", (*lab).growth},
	{dockerExperiment, "docker run with our driver beside Docker's bridge", (*lab).docker},
}

func experimentNames() string {
	var names []string
	for _, e := range experiments {
		names = append(names, e.name)
	}
	return strings.Join(names, ", ")
}

// pick returns full or, in a quick run, quick.
func (l *lab) pick(full, quick int) int {
	if l.quick {
		return quick
	}
	return full
}

// warmup is the number of first rounds that do not count. They make the bridges and the base
// chains.
const warmup = 2

// alternate measures chains on each set, rounds times. The sets take turns, in another order in each
// round, so that a quiet moment of the machine favours no set. Chains that the report compares take
// turns on each set for the same reason.
func (l *lab) alternate(rounds int, chains []string, sets ...string) error {
	sets = l.want(sets...)
	for round := range rounds + warmup {
		for i := range sets {
			for j := range chains {
				set, chain := sets[(i+round)%len(sets)], chains[(j+round)%len(chains)]
				if err := l.once(set, chain, round >= warmup); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// once measures a chain on a set. It adds the times to the results if they count.
func (l *lab) once(set, chain string, counts bool) error {
	req := request{Op: "cycle", Chain: chainOf(set, chain)}
	if set == bare {
		req = request{Op: "floor"}
	}
	rep, err := l.ask(set, req)
	if err != nil {
		return err
	}
	if err := l.judgeCheck(set, chain, rep.Cycle); err != nil || !counts {
		return err
	}
	key := set + "/" + chain
	lat := l.results.Latency[key]
	lat.append(rep.Cycle)
	l.results.Latency[key] = lat
	return nil
}

// judgeCheck judges a CHECK that failed. For our plugins it is an error, and for others a note in
// the report.
func (l *lab) judgeCheck(set, chain string, c cycle) error {
	switch {
	case c.CheckErr == "":
		return nil
	case l.plugins[set] == l.plugins[ours]:
		return fmt.Errorf("%s: CHECK of %s: %s", set, chain, c.CheckErr)
	}
	l.results.Notes[fmt.Sprintf("CHECK of %s by %s fails", chain, title(set))] = c.CheckErr
	return nil
}

func (l *lab) latency() error {
	return l.alternate(l.pick(100, 10), []string{"full"}, reference, debian, ours, oursOne, held, heldOne, then, thenOne, bare)
}

func (l *lab) bridgeAlone() error {
	return l.alternate(l.pick(100, 10), []string{"bridge"}, reference, debian, ours, held, then)
}

func (l *lab) ipv6() error {
	return l.alternate(l.pick(8, 2), []string{"ptp4", "ptp6"}, reference, debian, ours)
}

// reservations measures host-local with no reservation and with 60,000. The reference reads all 60,000
// files, and the next call then finds the processor's caches cold. So our plugins take turns among
// themselves when their own two numbers are compared: flat0 is hl0 beside hl60k.
func (l *lab) reservations() error {
	for _, set := range l.want(reference, debian, ours, then) {
		if _, err := l.ask(set, request{Op: "fill", Chain: "hl60k", N: l.pick(60000, 6000)}); err != nil {
			return err
		}
	}
	rounds := l.pick(60, 5)
	if err := l.alternate(rounds, []string{"hl0"}, reference, debian, ours, then); err != nil {
		return err
	}
	if err := l.alternate(rounds, []string{"hl60k"}, reference, debian); err != nil {
		return err
	}
	return l.alternate(rounds, []string{"flat0", "hl60k"}, ours, then)
}

func (l *lab) processes() error {
	for _, set := range l.want(reference, debian, ours, oursOne, held) {
		if _, err := l.ask(set, request{Op: "cycle", Chain: chainOf(set, "full")}); err != nil {
			return err
		}
		for _, verb := range []string{"add", "del"} {
			rep, err := l.ask(set, request{Op: "count-" + verb, Chain: chainOf(set, "full")})
			if err != nil {
				return err
			}
			l.results.Processes[set+"/"+verb] = rep.Counts
		}
	}
	return nil
}

func (l *lab) bursts() error {
	for round := range l.pick(12, 1) {
		sets := l.want(ours, oursOne, held, heldOne, then, thenOne)
		if round%3 == 0 { // theirs take ten times as long
			sets = append(sets, l.want(reference, debian)...)
		}
		for _, callers := range []int{1, 4, 16} {
			for i := range sets {
				set := sets[(i+round)%len(sets)]
				req := request{Op: "burst", Chain: chainOf(set, "full"), N: l.pick(64, 16), Callers: callers}
				rep, err := l.ask(set, req)
				if err != nil {
					return err
				}
				key := fmt.Sprintf("%s/%d", set, callers)
				b := l.results.Bursts[key]
				b.Pods, b.Add, b.Del = req.N, append(b.Add, rep.Cycle.Add), append(b.Del, rep.Cycle.Del)
				l.results.Bursts[key] = b
			}
		}
	}
	return nil
}

func (l *lab) version() error {
	for range l.pick(20, 4) {
		for _, set := range l.want(reference, debian, ours) {
			rep, err := l.ask(set, request{Op: "version", N: 20})
			if err != nil {
				return err
			}
			l.results.Version[set] = append(l.results.Version[set], rep.Costs...)
		}
	}
	return nil
}

func (l *lab) leaks() error {
	for _, set := range l.want(reference, ours, oursOne) {
		for harm, n := range map[string]int{"netns": l.pick(5, 2), "kill": l.pick(40, 6)} {
			rep, err := l.ask(set, request{Op: "leak-" + harm, Chain: chainOf(set, "full"), N: n})
			if err != nil {
				return err
			}
			l.results.Leaks[set+"/"+harm] = rep.Counts
		}
	}
	return nil
}

// size adds up the sizes of the plugin directories. A file with several names counts once.
func (l *lab) size() error {
	for _, set := range l.want(reference, debian, ours) {
		entries, err := os.ReadDir(l.plugins[set])
		if err != nil {
			return err
		}
		seen := map[uint64]bool{}
		for _, e := range entries {
			fi, err := os.Stat(filepath.Join(l.plugins[set], e.Name()))
			if err != nil {
				return err
			}
			if inode := fi.Sys().(*syscall.Stat_t).Ino; !seen[inode] {
				seen[inode] = true
				l.results.Size[set] += fi.Size()
			}
		}
	}
	return nil
}

// The cost of an ADD is measured on a node with these numbers of attachments. The reference stops
// at 1,000, because beyond that its ADDs take minutes.
var (
	growthSteps      = [...]int{0, 100, 250, 500, 750, 1000, 2000, 3000, 4000, 5000}
	quickGrowthSteps = [...]int{0, 25, 50, 100}
)

const growthReference = 1000

func (l *lab) growth() error {
	steps := growthSteps[:]
	if l.quick {
		steps = quickGrowthSteps[:]
	}
	for _, n := range steps {
		for _, set := range l.want(reference, ours, oursOne, thenOne) {
			if set == reference && n > growthReference {
				continue
			}
			if err := l.growTo(set, n); err != nil {
				return err
			}
		}
	}
	return nil
}

// growTo attaches containers until n are attached, and then measures a few more attachments.
func (l *lab) growTo(set string, n int) error {
	chain := chainOf(set, "grow")
	if _, err := l.ask(set, request{Op: "grow", Chain: chain, N: n}); err != nil {
		return err
	}
	p := point{Standing: n}
	for i := range l.pick(15, 4) + warmup {
		rep, err := l.ask(set, request{Op: "cycle", Chain: chain})
		if err != nil {
			return err
		}
		if i >= warmup {
			p.Cost.append(rep.Cycle)
		}
	}
	l.results.Growth[set] = append(l.results.Growth[set], p)
	if set == ours {
		return l.growFloor(n)
	}
	return nil
}

// growFloor measures the bare netlink calls on the node that has our attachments. They show how
// much time the kernel itself needs with so many links and namespaces.
func (l *lab) growFloor(n int) error {
	p := point{Standing: n}
	for range l.pick(15, 4) {
		rep, err := l.ask(ours, request{Op: "floor", Chain: "grow"})
		if err != nil {
			return err
		}
		p.Cost.append(rep.Cycle)
	}
	l.results.Growth[bare] = append(l.results.Growth[bare], p)
	return nil
}
