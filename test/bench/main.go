// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Command bench compares our plugins with the reference plugins and with Debian's build of them.
// Each set gets the same configuration from the same caller (upstream libcni), in alternating runs
// on one machine. An earlier commit of ours takes its turn, too. It prints a table of ratios with a target for each line, and writes results.md,
// results.json and growth.svg to docs/bench.
//
//	bench [-quick] [-only NAME,...] [-account] [-out DIR]
//
// The experiment docker measures `docker run` on two dockerds of test/labs/docker, with our
// driver beside Docker's bridge. It writes docker.md and docker.json. If Docker is missing, the
// report says so, and the other experiments still run. `-only docker` does not change the other
// results.
//
// It needs root. Each set of plugins gets its own node: a worker process in private network, mount
// and process namespaces with empty /run and /var/lib. So no set touches the machine or sees
// another set's firewall rules. The floor beside the numbers shows the cost that every plugin has:
// the bare netlink calls of the same attachment, and execs of an empty program.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
)

func main() {
	if os.Getenv(workerEnv) != "" {
		os.Exit(exit(serve(os.Stdin, os.Stdout)))
	}
	var o options
	flag.BoolVar(&o.quick, "quick", false, "few rounds: a look, not a result to publish")
	flag.StringVar(&o.only, "only", "", "comma separated experiments to run: "+experimentNames())
	account := flag.Bool("account", false, "the phases of an ADD: the same as -only account -sets ours,one,floor")
	flag.StringVar(&o.sets, "sets", "reference,debian,ours,one,resident,resident-one,then,then-one,floor", "comma separated sets of plugins to measure")
	flag.StringVar(&o.out, "out", "docs/bench", "directory for results.md, results.json, growth.svg; empty: print only")
	flag.Parse()
	if *account {
		o.only, o.sets = accountExperiment, ours+","+oursOne+","+bare
	}
	os.Exit(exit(run(o)))
}

// options are the options of the command line.
type options struct {
	quick bool
	only  string // experiments, separated by commas; if empty, all
	sets  string // sets of plugins, separated by commas
	out   string // directory for the results
}

func run(o options) error {
	if os.Geteuid() != 0 {
		return errors.New("needs root: it makes network namespaces and enters the plugins' world as a runtime does")
	}
	l, err := newLab(o)
	if err != nil {
		return err
	}
	defer l.close()
	if err := l.runAll(); err != nil {
		return err
	}
	return l.report(os.Stdout)
}

func exit(err error) int {
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, "bench: error:", err)
	return 1
}
