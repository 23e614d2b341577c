// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/results"
)

// permissions checks that only root may change what runs as root: the configurations, which choose the
// plugins and their values, the plugins, and the state. Plugins refuse state that others may change, and
// runtimes refuse nothing.
func permissions(_ context.Context, n *Node) (found []Finding, err error) {
	for _, s := range n.sensitive() {
		var who *durable.OthersError
		switch serr := durable.CheckOwned(s.path); {
		case errors.As(serr, &who):
			found = append(found, problem(who.Error()+": "+s.risk, "%s", who.Fix()))
		default:
			err = errors.Join(err, serr)
		}
	}
	return found, err
}

// sensitive is a file or directory that only root may change.
type sensitive struct{ path, risk string }

const (
	riskConf    = "whoever changes it chooses what runs as root"
	riskProgram = "whoever changes it runs as root"
	riskState   = "plugins refuse it, so ADD and DEL fail"
)

func (n *Node) sensitive() (list []sensitive) {
	add := func(risk string, paths ...string) {
		for _, p := range paths {
			list = append(list, sensitive{p, risk})
		}
	}
	add(riskConf, n.ConfDir)
	for _, pattern := range [...]string{"*.conf", "*.conflist", "*.json", "*/*.conf"} {
		add(riskConf, below(n.ConfDir, pattern)...)
	}
	for _, dir := range n.Runtime.Path() {
		add(riskProgram, dir)
		add(riskProgram, below(dir, "*")...)
	}
	networks := n.Paths.Pools()
	add(riskState, n.Paths.Run, n.Paths.State, n.Paths.CNI, networks, results.Dir(n.Paths.CNI))
	add(riskState, below(networks, "*")...)
	return list
}

// below lists what matches in a directory. If others may change the directory, its content may change at
// any time, and the finding about the directory is enough.
func below(dir, pattern string) (list []string) {
	if durable.CheckOwned(dir) != nil {
		return nil
	}
	list, _ = filepath.Glob(filepath.Join(dir, pattern)) // the pattern is valid
	return slices.DeleteFunc(list, func(path string) bool {
		_, err := os.Stat(path)
		return err != nil // it was removed meanwhile, or is a dangling symbolic link
	})
}
