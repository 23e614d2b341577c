// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"slices"
)

// publisherTitles are the names of the plugins in the tables, in the order of the rows.
var publisherTitles = [...]struct{ by, title string }{
	{byIptables, "reference, iptables"},
	{byNftables, "reference, nftables"},
	{byPatchbay, "Patchbay"},
}

// writePorts writes the page of this experiment.
func (r *results) writePorts(w io.Writer) {
	fmt.Fprintf(w, `# What published ports cost a packet

Made by `+"`go run ./test/bench -only ports`"+`, which `+"`make bench`"+` runs; do not edit. %s, %s, %d cores, Linux %s.

Traffic of containers on a bridge, while other containers with a published port stand on the node: medians, and quartiles in parentheses. A host
outside connects to the node. The backends are those of masquerade and portmap; the reference's firewall plugin uses iptables with both.

The nodes and containers have no IPv6, and those with traffic know their neighbours, so nobody sends a broadcast. On a bridge with more than 1,000 other
ports, an ARP request for the gateway is never answered, whatever plugin made the bridge: the request becomes one packet for each port, and the
gateway's reply comes behind them into a queue of the CPU that takes only 1,000 packets (`+"`net.core.netdev_max_backlog`"+`).

`, r.Date, r.Machine.CPU, r.Machine.Cores, r.Machine.Kernel)
	r.writePortsTarget(w)
	fmt.Fprint(w, `
The ratio to Patchbay compares with Patchbay on a node with as many containers. The other one compares with the same plugins on a node with one. Both are
medians of the rounds' ratios.

| traffic | containers | plugins | rate | to Patchbay | to one container |
| --- | --: | --- | --: | --: | --: |
`)
	for _, way := range []string{inward, outward, between} {
		for _, kind := range kinds {
			for _, standing := range standings {
				for _, p := range publisherTitles {
					r.writePortRow(w, flow{way, kind.name}, kind.unit, p.by, p.title, standing)
				}
			}
		}
	}
}

// writePortsTarget writes the target with our verdict, and what the reference reaches.
func (r *results) writePortsTarget(w io.Writer) {
	most := slices.Max(standings)
	fmt.Fprintf(w, "Target: with %d containers, the rate of connections to a published port is at least %.2fx of the rate with one.\n\n", most, portsFloor)
	fmt.Fprintf(w, "| plugins | with one | with %d | ratio | |\n| --- | --: | --: | --: | --- |\n", most)
	for _, p := range publisherTitles {
		one, many := r.Ports[portKey(p.by, 1, promised)], r.Ports[portKey(p.by, most, promised)]
		verdict := ""
		if p.by == byPatchbay {
			verdict = judgePorts(ratios(many, one))
		}
		if len(many) > 0 || verdict == unmeasured {
			fmt.Fprintf(w, "| %s | %s | %s | %s | %s |\n", p.title, rateText(one), rateText(many), ratioSpread(ratios(many, one)), verdict)
		}
	}
}

func judgePorts(growth []float64) string {
	_, median, _ := quartiles(growth)
	switch {
	case len(growth) == 0:
		return unmeasured
	case median < portsFloor:
		return missed
	}
	return met
}

func (r *results) writePortRow(w io.Writer, f flow, unit, by, title string, standing int) {
	own := r.Ports[portKey(by, standing, f)]
	if len(own) == 0 {
		return
	}
	beside, growth := ratios(own, r.Ports[portKey(byPatchbay, standing, f)]), ratios(own, r.Ports[portKey(by, 1, f)])
	fmt.Fprintf(w, "| %s: %s, %s | %d | %s | %s | %s | %s |\n", f.way, f.kind, unit, standing, title, rateText(own), medianRatio(beside), medianRatio(growth))
}

// medianRatio returns the median, or a dash if nothing was measured.
func medianRatio(list []float64) string {
	if len(list) == 0 {
		return "-"
	}
	_, median, _ := quartiles(list)
	return fmt.Sprintf("%.2fx", median)
}

// ratioSpread returns the median ratio with its quartiles, or a dash.
func ratioSpread(list []float64) string {
	if len(list) == 0 {
		return "-"
	}
	low, median, high := quartiles(list)
	return fmt.Sprintf("%.2fx (%.2f-%.2f)", median, low, high)
}
