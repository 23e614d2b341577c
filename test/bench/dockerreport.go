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
	fmt.Fprintf(w, "# `docker run` beside Docker's bridge\n\nMade by `go run ./test/bench -only docker`; do not edit. %s, %s, %d cores, Linux %s.\n",
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
Containers of one image, made one after the other, the networks taking turns in an order drawn for each round. Measured at Docker's API: *to running* is create and start, what
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
		parts = append(parts, fmt.Sprintf("%s %.0f", key, median(d.Plugins[key])))
	}
	fmt.Fprintf(w, "\nOf that the plugins took: %s.\n", strings.Join(parts, ", "))
	for _, way := range []struct {
		to, verb   string
		calls      []string
		ours, none sample
	}{
		{"running", "ADD", dockerRunCalls[:], d.Run["ours-p"], d.Run["none"]},
		{"gone", "DEL", dockerRemoveCalls[:], d.Remove["ours-p"], d.Remove["none"]},
	} {
		driver, plugins := d.callTime(way.calls), d.pluginTime(way.verb)
		fmt.Fprintf(w, "\nOn the way to %s a network of ours with a port costs %s ms more than none: %s in the driver, %s of them in plugins, and the rest in dockerd.\n",
			way.to, whole(way.ours.wall(50)-way.none.wall(50)), whole(driver), whole(plugins))
	}
}

var (
	dockerRunCalls    = [...]string{".CreateEndpoint", ".Join", ".ProgramExternalConnectivity", ".EndpointOperInfo"}
	dockerRemoveCalls = [...]string{".RevokeExternalConnectivity", ".Leave", ".DeleteEndpoint"}
)

// callTime adds up calls that dockerd makes one after the other.
func (d *dockerResult) callTime(methods []string) (sum time.Duration) {
	for _, m := range methods {
		sum += d.Calls[m].wall(50)
	}
	return sum
}

// pluginTime is that of all plugins of one container.
func (d *dockerResult) pluginTime(verb string) (sum time.Duration) {
	for key, times := range d.Plugins {
		if strings.HasPrefix(key, verb+" ") {
			sum += time.Duration(median(times) * 1e6)
		}
	}
	return sum
}

func median(times []millisecond) millisecond {
	if len(times) == 0 {
		return 0
	}
	return slices.Sorted(slices.Values(times))[(len(times)-1)/2]
}

// whole is a duration in whole milliseconds.
func whole(d time.Duration) string { return fmt.Sprintf("%.0f", float64(d)/1e6) }

const dockerReasons = `
## Why

Docker's bridge runs inside dockerd and makes its veth where it is needed. A driver outside of it is asked over a socket, once a step, and dockerd does
the same work of its own for both: the namespace of the container, addresses, routes, DNS. What ours adds:

- **Plugins.** Each is a process for each verb: two on the way to running, three with a published port. As ` + "`type: patchbay`" + ` where the
  whole chain runs in one place, before Docker 28, it is one.
- **A holding namespace.** CNI makes an interface in a namespace, Docker takes one from the host's, and a container's namespace is not there yet before
  Docker 28. So there is one more namespace to make and to destroy, and the interface moves twice more: into the host's namespace before
  Docker takes it, and back before DEL. Each set down and each move waits for all processors (RCU), under the lock that all network
  configuration of the kernel shares; the kernel destroys namespaces under it too, later, when the next container waits for it.
- **What is written before it is done.** The endpoint's file is synced to the disk before each step, so that a driver killed between any two knows
  what is there: 7 times on the way to running (9 with a port), 5 times on the way back. On a disk that is slow to sync this is what counts.

What was saved after the first measurement: looking for the container's waiting process read a directory of each process of the host (20 ms with 220
processes, and more with more; now 0.5 ms), and each file's directory was synced with it (12 syncs of a start, now 7).
`
