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
All containers have the same image and are started one after the other. The networks take turns, in a random order for each round. Times are in
milliseconds, measured at Docker's API. *To running* is the time of create and start, for which ` + "`docker run -d`" + ` waits, without the start of the
client program. *Remove* is the time of ` + "`docker rm -f`" + `. Containers per second are measured with 8 callers at the same time. *More than none* is
the difference from ` + "`--network none`" + `. Docker and our driver keep their data on one disk. Docker's bridge is a separate network with Docker's
defaults. Our network is a bridge with masquerade, hairpin and the plugin firewall.
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

// dockerCallOrder is the order of dockerd's calls.
var dockerCallOrder = [...]struct{ method, about string }{
	{".CreateEndpoint", "makes the holding namespace, runs the first plugin, reads what the plugin made"},
	{".Join", "moves the interface to the host; before Docker 28 also runs the rest of the chain"},
	{".ProgramExternalConnectivity", "runs portmap"},
	{".EndpointOperInfo", "from Docker 28 on, runs the rest of the chain"},
	{".RevokeExternalConnectivity", "runs DEL of portmap"},
	{".Leave", "runs DEL of the plugins that ran in the sandbox"},
	{".DeleteEndpoint", "moves the interface back, runs DEL of the first plugin"},
}

func (d *dockerResult) writeCalls(w io.Writer) {
	fmt.Fprintf(w, "\nThe table lists how long our driver took for each call, with one published port (medians):\n\n| call | ms | what it does |\n| --- | --: | --- |\n")
	for _, c := range dockerCallOrder {
		if s := d.Calls[c.method]; len(s) > 0 {
			fmt.Fprintf(w, "| %s | %s | %s |\n", strings.TrimPrefix(c.method, "."), ms(s.wall(50)), c.about)
		}
	}
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(d.Plugins)) {
		parts = append(parts, fmt.Sprintf("%s %.0f", key, median(d.Plugins[key])))
	}
	fmt.Fprintf(w, "\nThe plugins took these milliseconds of the calls: %s.\n", strings.Join(parts, ", "))
	for _, way := range []struct {
		what, verb string
		calls      []string
		ours, none sample
	}{
		{"Starting", "ADD", dockerRunCalls[:], d.Run["ours-p"], d.Run["none"]},
		{"Removing", "DEL", dockerRemoveCalls[:], d.Remove["ours-p"], d.Remove["none"]},
	} {
		driver, plugins := d.callTime(way.calls), d.pluginTime(way.verb)
		fmt.Fprintf(w, "\n%s a container with a published port takes %s ms longer on a network of ours than without a network. The driver takes %s ms of this, of which the plugins take %s ms; dockerd takes the rest.\n",
			way.what, whole(way.ours.wall(50)-way.none.wall(50)), whole(driver), whole(plugins))
	}
}

var (
	dockerRunCalls    = [...]string{".CreateEndpoint", ".Join", ".ProgramExternalConnectivity", ".EndpointOperInfo"}
	dockerRemoveCalls = [...]string{".RevokeExternalConnectivity", ".Leave", ".DeleteEndpoint"}
)

// callTime adds up the times of calls that dockerd makes one after the other.
func (d *dockerResult) callTime(methods []string) (sum time.Duration) {
	for _, m := range methods {
		sum += d.Calls[m].wall(50)
	}
	return sum
}

// pluginTime adds up the times of all plugins of one container.
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

// whole formats a duration in whole milliseconds.
func whole(d time.Duration) string { return fmt.Sprintf("%.0f", float64(d)/1e6) }

const dockerReasons = `
## Why

Docker's bridge driver runs inside dockerd and makes its veth where the container needs it. dockerd calls an external driver over a socket, once
per step. With both drivers, dockerd itself makes the container's namespace and sets addresses, routes and DNS. Our driver adds this work:

- **Plugins.** Each plugin runs in a process of its own for each verb. Until the container runs, these are two processes, or three with a published
  port. With ` + "`type: patchbay`" + ` there is only one process if the whole chain runs in one namespace, as before Docker 28.
- **A holding namespace.** A CNI plugin makes the interface in a namespace, but Docker takes the interface from the host's namespace. Before
  Docker 28 the container's namespace does not exist yet. So our driver makes and destroys one more namespace, and moves the interface two more
  times: into the host's namespace before Docker takes it, and back before DEL. Each time a link is set down or moved, the kernel waits for all
  processors (RCU) while it holds the lock for all network configuration. The kernel also destroys namespaces under this lock, a little later, so
  the next container waits.
- **Files that are synced before each step.** The driver syncs the endpoint's file to the disk before each step. So if the driver is killed between
  two steps, the next driver knows which objects exist. It syncs the file 7 times until the container runs (9 times with a port), and 5 times until
  the container is removed. On a disk that syncs slowly, this takes more time than the rest.

Two changes after the first measurement saved time. To find the container's waiting process, the driver read a directory for each process of the
host, which took 20 ms with 220 processes; now it takes 0.5 ms. The driver also synced each file's directory together with the file. It no
longer does so, and the start of a container needs 7 syncs instead of 12.
`
