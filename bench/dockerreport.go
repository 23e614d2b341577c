// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// writeDocker writes docs/bench/docker.md.
func (r *results) writeDocker(w io.Writer) {
	fmt.Fprintf(w, "# `docker run` beside Docker's bridge\n\nMade by `go run ./bench -only docker`; do not edit. %s, %s, %d cores, Linux %s.\n",
		r.Date, r.Machine.CPU, r.Machine.Cores, r.Machine.Kernel)
	if r.Quick {
		fmt.Fprintf(w, "A quick run: too few rounds to be quoted.\n")
	}
	fmt.Fprint(w, dockerHow)
	for _, kind := range dockerKinds {
		if d := r.Docker[kind]; d != nil {
			fmt.Fprintf(w, "\n## dockerd %s\n\n", d.Version)
			d.writeRounds(w)
			d.writeCalls(w)
		}
	}
	fmt.Fprint(w, dockerReasons)
}

const dockerHow = `
Containers of one image, made one after the other, the networks taking turns. Measured at Docker's API: *to running* is create and start, what
` + "`docker run -d`" + ` waits for, without the start of the client program; *remove* is ` + "`docker rm -f`" + `. Pods a second are those of 8 callers at
once. The data of Docker and of our driver are on one disk. Docker's bridge is a network of its own with Docker's defaults; ours is a bridge with
masquerade, hairpin and the plugin firewall. Milliseconds.
`

func (d *dockerResult) writeRounds(w io.Writer) {
	fmt.Fprintf(w, "| network | to running, median | p90 | more than none | remove, median | p90 | more than none | 8 callers: run | remove | rounds |\n")
	fmt.Fprintf(w, "| --- | --: | --: | --: | --: | --: | --: | --: | --: | --: |\n")
	floorRun, floorRemove := d.Run["none"].wall(50), d.Remove["none"].wall(50)
	for _, s := range dockerSubjects {
		run, remove := d.Run[s.name], d.Remove[s.name]
		fmt.Fprintf(w, "| %s | %s | %s | %s | %s | %s | %s | %s | %d |\n", s.title,
			whole(run.wall(50)), whole(run.wall(90)), whole(run.wall(50)-floorRun),
			whole(remove.wall(50)), whole(remove.wall(90)), whole(remove.wall(50)-floorRemove), d.burstText(s), len(run))
	}
}

func (d *dockerResult) burstText(s dockerSubject) string {
	b, ok := d.Bursts[s.name]
	if !ok {
		return "- | -"
	}
	return fmt.Sprintf("%.1f/s | %.1f/s", b.perSecond(b.Add), b.perSecond(b.Del))
}

// dockerCallOrder is the order in which dockerd calls.
var dockerCallOrder = [...]struct{ method, about string }{
	{".CreateEndpoint", "holding namespace, first plugin, snapshot"},
	{".Join", "the interface to the host; before Docker 28 the rest of the chain"},
	{".ProgramExternalConnectivity", "portmap"},
	{".EndpointOperInfo", "the rest of the chain, from Docker 28 on"},
	{".RevokeExternalConnectivity", "portmap's DEL"},
	{".Leave", "DEL of what ran in the sandbox"},
	{".DeleteEndpoint", "the interface back, DEL of the first plugin"},
}

func (d *dockerResult) writeCalls(w io.Writer) {
	fmt.Fprintf(w, "\nWhat our driver took of it, one port published (medians):\n\n| call | ms | what it does |\n| --- | --: | --- |\n")
	for _, c := range dockerCallOrder {
		if s := d.Calls[c.method]; len(s) > 0 {
			fmt.Fprintf(w, "| %s | %s | %s |\n", strings.TrimPrefix(c.method, "."), ms(s.wall(50)), c.about)
		}
	}
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(d.Plugins)) {
		all := slices.Sorted(slices.Values(d.Plugins[key]))
		parts = append(parts, fmt.Sprintf("%s %.0f", key, all[(len(all)-1)/2]))
	}
	fmt.Fprintf(w, "\nOf that the plugins took: %s.\n", strings.Join(parts, ", "))
}

// whole is a duration in whole milliseconds.
func whole(d time.Duration) string { return fmt.Sprintf("%.0f", float64(d)/1e6) }

const dockerReasons = ""
