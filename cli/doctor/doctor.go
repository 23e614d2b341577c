// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package doctor implements `patchbay doctor`: it finds what is wrong with the networking of a
// node, and says what to do about it. Other commands use parts of this package. Validate judges a
// configuration, Status and Inspect call plugins, an Inspector compares attachments with the kernel.
//
// A check is one function with a line in the table of Checks. It changes nothing that containers or
// other programs use. The check leftovers writes one file of gc, under gc's lock: when it first saw objects that
// have no date. Without it, doctor would never report such objects where nobody runs gc. To find out what
// the kernel supports, it tries the feature in a separate namespace, and does not ask for the
// kernel's version. If a check cannot read what it needs, it returns an error, which doctor
// prints as a warning. So if doctor prints nothing for a check, the check has run and found no
// problem.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"syscall"

	"github.com/patchbay-net/patchbay/internal/durable"
)

// Level is the severity of a finding.
type Level string

// These are the levels. A warning means trouble later. A problem means that something does not
// work now, that an ADD would fail, or that somebody else may become root.
const (
	Warning Level = "warning"
	Problem Level = "problem"
)

// Finding is one problem or warning.
type Finding struct {
	Check string `json:"check"` // the id of the check
	Level Level  `json:"level"`
	What  string `json:"what"`
	Fix   string `json:"fix"` // what to do about it

	Cause error `json:"-"` // has the error code, if there is one
}

// Error returns what was found, without what to do about it.
func (f Finding) Error() string { return f.What }

// Unwrap returns the cause.
func (f Finding) Unwrap() error { return f.Cause }

// Check describes one check.
type Check struct {
	ID    string // never changes, because --check and monitoring use it
	Title string // what is true if the check finds nothing
	Run   func(context.Context, *Node) ([]Finding, error)
}

// Checks returns all checks, in the order of a report.
func Checks() []Check {
	return []Check{
		{"privileges", "this process can read everything", privileges},
		{"permissions", "only root may change configurations, plugins and state", permissions},
		{"kernel", "the kernel has what the networks need", kernelFeatures},
		{"config", "the configurations are valid and their plugins exist", configurations},
		{"status", "an ADD would work on every network", statuses},
		{"plugins", "the plugins in CNI_PATH are of this build", binaries},
		{"dhcp", "leases of DHCP have a keeper", dhcpKeepers},
		{"agent", "the agent of the Kubernetes node reports no problem", nodeAgent},
		{"overlap", "no two networks, and no route of the host, share addresses", overlaps},
		{"bridges", "no two networks fight over a bridge", bridges},
		{"mtu", "MTUs fit together", mtus},
		{"pools", "the pools have free addresses", pools},
		{"attachments", "every container has the interface, addresses and routes it was given", attachments},
		{"leftovers", "nothing is left of dead containers", leftovers},
		{"firewall", "our firewall table is complete and unchanged", ourTable},
		{"policies", "network policies are enforced as the agent wrote them for ADDs", policies},
		{"networks", "pods can be attached to further networks, by definitions of today", furtherNetworks},
		{"services", "packets to Services go where the agent sends them", servicesTable},
		{"drop", "no other program drops the containers' traffic", otherDrops},
		{"forwarding", "the host forwards", forwarding},
		{"ways", "nothing but firewalls is between containers and the outside", ways},
		{"rp-filter", "reverse path filters let answers through", reversePaths},
		{"br-netfilter", "bridged traffic is not filtered by surprise", bridgeNetfilter},
		{"conntrack", "the connection table has room", conntrackTable},
	}
}

// Report holds what the checks found.
type Report struct {
	Checks   []string  `json:"checks"` // the ids of the checks that were run
	Findings []Finding `json:"findings"`
}

// Worst returns the level of the worst finding, or "" if there is none.
func (r *Report) Worst() (worst Level) {
	for _, f := range r.Findings {
		if f.Level == Problem {
			return Problem
		}
		worst = f.Level
	}
	return worst
}

// Examine runs the checks and returns what they found.
func Examine(ctx context.Context, n *Node, checks []Check) *Report {
	r := &Report{Findings: []Finding{}}
	for _, c := range checks {
		found, err := c.Run(ctx, n)
		if err != nil {
			found = append(found, warning("doctor could not check: "+err.Error(), "%s", readAdvice(err)))
		}
		for _, f := range found {
			f.Check = c.ID
			r.Findings = append(r.Findings, f)
		}
		r.Checks = append(r.Checks, c.ID)
	}
	return r
}

// readAdvice returns the advice for a check that could not read what it needs.
func readAdvice(err error) string {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return "run it as root, where the containers' runtime runs"
	case errors.Is(err, durable.ErrNotOurs):
		return "the check permissions says which command corrects it"
	case errors.Is(err, syscall.EROFS):
		return "make the directory writable: mount -o remount,rw"
	}
	return "correct what the error names, and run doctor again"
}

func warning(what, fix string, args ...any) Finding {
	return Finding{Level: Warning, What: what, Fix: fmt.Sprintf(fix, args...)}
}

func problem(what, fix string, args ...any) Finding {
	return Finding{Level: Problem, What: what, Fix: fmt.Sprintf(fix, args...)}
}

// groups maps each text to the names for which it was found. The texts keep the order in which
// they were added.
type groups struct {
	order []string
	names map[string][]string
}

func (g *groups) add(what, name string) {
	if g.names == nil {
		g.names = make(map[string][]string)
	}
	if g.names[what] == nil {
		g.order = append(g.order, what)
	}
	if !slices.Contains(g.names[what], name) {
		g.names[what] = append(g.names[what], name)
	}
}
