// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/podnet"
	"github.com/patchbay-net/patchbay/spec"
)

// podTemplate returns the path of the template. It is outside the directory of networks, where
// a runtime would read it as a network.
func (a *app) podTemplate() string { return filepath.Join(a.paths.Etc, "patchbay.template") }

// parsePods parses the prefixes of --cluster-cidr and --pod-cidr.
func parsePods(cluster, node []string) (p podnet.Network, err error) {
	if p.Cluster, err = prefixes("--cluster-cidr", cluster); err != nil {
		return p, err
	}
	if p.Node, err = prefixes("--pod-cidr", node); err != nil {
		return p, err
	}
	for _, n := range p.Node {
		inside := func(c netip.Prefix) bool { return c.Contains(n.Addr()) && c.Bits() <= n.Bits() }
		sameFamily := func(c netip.Prefix) bool { return c.Addr().Is4() == n.Addr().Is4() }
		if slices.ContainsFunc(p.Cluster, sameFamily) && !slices.ContainsFunc(p.Cluster, inside) {
			return p, usage("", "--pod-cidr %s is in no --cluster-cidr", n)
		}
	}
	return p, nil
}

func prefixes(flag string, texts []string) (list []netip.Prefix, err error) {
	if list, err = podnet.Prefixes(flag, texts); err != nil {
		return nil, usage("", "%v", err)
	}
	return list, nil
}

// writePods writes the network's configuration if the node's prefixes are given. Otherwise it
// writes the template. It does not write a file that is up to date: after each change a runtime
// reads its directory again, and new pods wait meanwhile (docs/kubernetes.md).
func (a *app) writePods(p podnet.Network) (path string, changed bool, err error) {
	path = a.podTemplate()
	if len(p.Node) > 0 {
		path = filepath.Join(confDir(a.getenv), podnet.File)
	}
	if old, err := durable.ReadConf(path); err == nil && podnet.IsOurs(old) {
		p.Pool = podnet.PoolOf(old) // of running pods
	}
	changed, err = durable.Update(path, p.Text(), 0o644, podnet.IsOurs)
	if errors.Is(err, durable.ErrForeign) {
		return "", false, spec.Errorf(spec.CodeInvalidConfig, "install: %s is not of patchbay install --kubernetes: move it away", path)
	}
	if err != nil {
		return "", false, fmt.Errorf("install: %w", err)
	}
	return path, changed, nil
}

// removePodTemplate removes the template if install wrote it. It keeps the network's file,
// because pods use it.
func (a *app) removePodTemplate() error {
	data, err := durable.ReadConf(a.podTemplate())
	if err != nil || !podnet.IsTemplate(data) {
		return nil //nolint:nilerr // no file of ours
	}
	return durable.Remove(a.podTemplate())
}

// podText tells the user what was written and how to configure containerd.
func podText(path string, changed bool) string {
	state := "unchanged"
	if changed {
		state = "written"
	}
	text := fmt.Sprintf("%-9s  %s\n", state, path)
	if strings.HasSuffix(path, ".template") {
		text += fmt.Sprintf("containerd reads it as conf_template = %q, beside bin_dir in its configuration\n", path)
	}
	return text
}
