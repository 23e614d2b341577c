// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// report prints the tables and writes the files. If an experiment failed, report returns an error,
// but first writes all other results.
func (l *lab) report(w io.Writer) error {
	files, err := l.files()
	if err != nil {
		return err
	}
	for _, name := range []string{"results.md", "docker.md", "policies.md", "ports.md", "account.md"} {
		if _, err := w.Write(files[name]); err != nil {
			return err
		}
	}
	if l.out != "" {
		if err := save(l.out, files); err != nil {
			return err
		}
	}
	if len(l.failed) > 0 {
		return errors.New(strings.Join(l.failed, "; "))
	}
	return nil
}

// files returns the files to write, by name. Docker, policies, ports and the account have their own files: a run of
// one of them alone does not change the other results, and a run without them does not change theirs.
func (l *lab) files() (files map[string][]byte, err error) {
	files = map[string][]byte{}
	if len(l.results.Docker) > 0 {
		var b bytes.Buffer
		l.results.writeDocker(&b)
		files["docker.md"] = b.Bytes()
		if files["docker.json"], err = json.Marshal(l.results.Docker); err != nil {
			return nil, err
		}
	}
	if len(l.results.Policies) > 0 {
		var b bytes.Buffer
		l.results.writePolicies(&b)
		files["policies.md"] = b.Bytes()
	}
	if len(l.results.Ports) > 0 {
		var b bytes.Buffer
		l.results.writePorts(&b)
		files["ports.md"] = b.Bytes()
	}
	if len(l.results.Account) > 0 {
		var b bytes.Buffer
		l.results.writeAccount(&b)
		files["account.md"] = b.Bytes()
	}
	if slices.Contains([]string{dockerExperiment, policiesExperiment, portsExperiment, accountExperiment}, l.only) {
		return files, nil
	}
	var b bytes.Buffer
	l.results.write(&b)
	for _, f := range l.failed {
		fmt.Fprintf(&b, "\nFailed: %s\n", f)
	}
	files["results.md"], files["growth.svg"] = b.Bytes(), growthSVG(l.results.Growth)
	files["results.json"], err = json.Marshal(l.results)
	return files, err
}

func save(dir string, files map[string][]byte) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, content := range files {
		content = append(bytes.TrimSuffix(content, []byte("\n")), '\n')
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// write writes the results as markdown.
func (r *results) write(w io.Writer) {
	fmt.Fprintf(w, "# Beside the reference plugins\n\nMade by `make bench`; do not edit. %s, %s, %d cores, Linux %s, %s, reference %s with iptables-nft.\n",
		r.Date, r.Machine.CPU, r.Machine.Cores, r.Machine.Kernel, r.Machine.Go, r.Machine.Reference)
	if r.Quick {
		fmt.Fprintf(w, "A quick run: too few rounds to be quoted.\n")
	}
	fmt.Fprintf(w, "Times in the first table are medians with quartiles. *%s* is an earlier commit of ours. *Resident*: `patchbayd plugins` runs the calls. *Floor* is a program that makes only the same kernel calls. *Full chain* is bridge, host-local, masquerade, portmap and firewall.\n\n## Targets\n\n", thenCommit)
	fmt.Fprintf(w, "| | reference or floor | Patchbay | ratio | target | |\n| --- | --: | --: | --: | --- | --- |\n")
	for _, row := range r.rows() {
		fmt.Fprintf(w, "| %s | %s | %s | %s | %s | %s |\n", row.What, row.Reference, row.Ours, row.Ratio, row.Target, row.Verdict)
	}
	for _, what := range slices.Sorted(maps.Keys(r.Notes)) {
		fmt.Fprintf(w, "\n%s: %s\n", what, r.Notes[what])
	}
	r.writeLatency(w)
	r.writeBursts(w)
	r.writeGrowth(w)
	r.writeProcesses(w)
	r.writePackets(w)
}

func (r *results) writeLatency(w io.Writer) {
	fmt.Fprintf(w, "\n## Latency and CPU\n\nTimes are in milliseconds. CPU is the mean user and system time of all processes of one call. `hl0` and `hl60k` are host-local alone, with no reservation and with 60,000; `flat0` is `hl0` measured in turns with `hl60k`.\n\n")
	fmt.Fprintf(w, "| chain | plugins | verb | p50 | p95 | p99 | CPU | rounds |\n| --- | --- | --- | --: | --: | --: | --: | --: |\n")
	for _, chain := range []string{"full", "bridge", "ptp4", "ptp6", "macvlan4", "macvlan6", "ipvlan4", "dhcp", "hl0", "flat0", "hl60k"} {
		for _, set := range []string{reference, debian, ours, held, then, oursOne, heldOne, thenOne, bare} {
			lat, ok := r.Latency[set+"/"+chain]
			if !ok {
				continue
			}
			for _, v := range []struct {
				verb string
				s    sample
			}{{"ADD", lat.Add}, {"CHECK", lat.Check}, {"DEL", lat.Del}} {
				if v.s.wall(50) > 0 {
					fmt.Fprintf(w, "| %s | %s | %s | %s | %s | %s | %s | %d |\n", chain, title(set), v.verb,
						ms(v.s.wall(50)), ms(v.s.wall(95)), ms(v.s.wall(99)), ms(v.s.cpu()), len(v.s))
				}
			}
		}
	}
	for _, set := range []string{reference, debian, ours} {
		if s := r.Version[set]; len(s) > 0 {
			fmt.Fprintf(w, "| loopback | %s | VERSION | %s | %s | %s | %s | %d |\n", title(set),
				ms(s.wall(50)), ms(s.wall(95)), ms(s.wall(99)), ms(s.cpu()), len(s))
		}
	}
}

func (r *results) writeBursts(w io.Writer) {
	fmt.Fprintf(w, "\n## Pods a second, full chain\n\n| plugins | 1 caller ADD | DEL | 4 callers ADD | DEL | 16 callers ADD | DEL | CPU of a pod, ms |\n")
	fmt.Fprintf(w, "| --- | --: | --: | --: | --: | --: | --: | --: |\n")
	for _, set := range []string{reference, debian, ours, held, then, oursOne, heldOne, thenOne} {
		if _, ok := r.Bursts[set+"/1"]; !ok {
			continue
		}
		fmt.Fprintf(w, "| %s |", title(set))
		for _, callers := range []string{"1", "4", "16"} {
			b := r.Bursts[set+"/"+callers]
			fmt.Fprintf(w, " %.0f | %.0f |", b.perSecond(b.Add), b.perSecond(b.Del))
		}
		b := r.Bursts[set+"/16"]
		fmt.Fprintf(w, " %.1f |\n", float64(b.Add.cpu()+b.Del.cpu())/1e6/float64(max(1, b.Pods)))
	}
}

func (r *results) writeGrowth(w io.Writer) {
	fmt.Fprintf(w, "\n## Growth\n\nThe chain is ptp, masquerade, portmap and firewall. Times are medians in milliseconds. *Standing* is the number of other attachments. ![growth](growth.svg)\n\n")
	fmt.Fprintf(w, "| standing | plugins | ADD | CHECK | DEL |\n| --: | --- | --: | --: | --: |\n")
	for _, set := range []string{reference, ours, oursOne, thenOne, bare} {
		for _, p := range r.Growth[set] {
			fmt.Fprintf(w, "| %d | %s | %s | %s | %s |\n", p.Standing, title(set),
				ms(p.Cost.Add.wall(50)), ms(p.Cost.Check.wall(50)), ms(p.Cost.Del.wall(50)))
		}
	}
}

func (r *results) writeProcesses(w io.Writer) {
	fmt.Fprintf(w, "\n## Processes of one attachment, full chain\n\n| plugins | verb | processes | which |\n| --- | --- | --: | --- |\n")
	for _, set := range []string{reference, debian, ours, held, oursOne} {
		for _, verb := range []string{"add", "del"} {
			counts := r.Processes[set+"/"+verb]
			total := 0
			for _, n := range counts {
				total += n
			}
			if total > 0 {
				fmt.Fprintf(w, "| %s | %s | %d | %s |\n", title(set), strings.ToUpper(verb), total, countText(counts))
			}
		}
	}
}

// countText formats the counts that are not zero, in the order of their names.
func countText(counts map[string]int) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		if counts[name] != 0 {
			parts = append(parts, fmt.Sprintf("%d %s", counts[name], name))
		}
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}

// title returns the name of a set in the tables.
func title(set string) string {
	switch set {
	case reference:
		return "reference"
	case debian:
		return "Debian"
	case ours:
		return "Patchbay"
	case oursOne:
		return "`type: patchbay`"
	case then:
		return "Patchbay " + thenCommit
	case thenOne:
		return "`type: patchbay` " + thenCommit
	case held:
		return "Patchbay, resident"
	case heldOne:
		return "`type: patchbay`, resident"
	case bare:
		return "floor"
	}
	return set
}
