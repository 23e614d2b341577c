// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"slices"
)

// writePorts writes the page of this experiment.
func (r *results) writePorts(w io.Writer) {
	fmt.Fprintf(w, `# What published ports cost a packet

Made by `+"`go run ./test/bench -only ports`"+`, which `+"`make bench`"+` runs; do not edit. %s, %s, %d cores, Linux %s.

Traffic of containers on a bridge, while other containers with a published port stand on the node: medians, and quartiles in parentheses. A host
outside connects to the node. The ratio to Patchbay on a node with as many containers, and that of Patchbay to Patchbay with one, is the
median of the rounds' ratios. The target is a connection rate to a published port of at least %.2f of that with one container.

| traffic | containers | plugins | rate | to Patchbay | to one container | |
| --- | --: | --- | --: | --: | --: | --- |
`, r.Date, r.Machine.CPU, r.Machine.Cores, r.Machine.Kernel, portsFloor)
	for _, way := range []string{inward, outward, between} {
		for _, kind := range kinds {
			for _, standing := range standings {
				for _, by := range []string{byIptables, byNftables, byPatchbay} {
					r.writePortRow(w, way, kind.name, kind.unit, by, standing)
				}
			}
		}
	}
}

func (r *results) writePortRow(w io.Writer, way, kind, unit, by string, standing int) {
	rates := func(by string, standing int) []float64 {
		return r.Ports[portKey(by, standing, flow{way, kind})]
	}
	own := rates(by, standing)
	if len(own) == 0 {
		return
	}
	_, beside, _ := quartiles(ratios(own, rates(byPatchbay, standing)))
	_, growth, _ := quartiles(ratios(own, rates(by, 1)))
	verdict := ""
	if by == byPatchbay && way == inward && kind == "connections" && standing == slices.Max(standings) {
		verdict = missed
		if growth >= portsFloor {
			verdict = met
		}
	}
	name := map[string]string{byIptables: "reference, iptables", byNftables: "reference, nftables", byPatchbay: "Patchbay"}[by]
	fmt.Fprintf(w, "| %s: %s, %s | %d | %s | %s | %.2fx | %.2fx | %s |\n", way, kind, unit, standing, name, rateText(own), beside, growth, verdict)
}
