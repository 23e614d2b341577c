// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/spec"
)

// templateMark begins the template, a comment of Go's templates. Only a file that begins
// with it is ours to replace or to remove.
const templateMark = "{{/* patchbay install --kubernetes */ -}}\n"

// The ranges and routes of the pods in the template; containerd knows them when the kubelet
// has told it the node's podCIDRs.
const (
	templateRanges = `{{range $i, $r := .PodCIDRRanges}}{{if $i}}, {{end}}[{"subnet": "{{$r}}"}]{{end}}`
	templateRoutes = `{{range $i, $r := .Routes}}{{if $i}}, {{end}}{"dst": "{{$r}}"}{{end}}`
)

// pods is the network of a Kubernetes node that needs no agent.
type pods struct {
	cluster []netip.Prefix // all pods of the cluster: not masqueraded
	node    []netip.Prefix // this node's pods; none: the runtime fills the template
}

// podTemplate is where the template goes: beside the networks, where no runtime takes it for one.
func (a *app) podTemplate() string { return filepath.Join(a.paths.Etc, "patchbay.template") }

// podNetwork is where the network goes when the node's prefixes are given.
func (a *app) podNetwork() string { return filepath.Join(confDir(a.getenv), "10-pods.conflist") }

// parsePods reads the prefixes of the command line.
func parsePods(cluster, node []string) (p pods, err error) {
	if p.cluster, err = prefixes("--cluster-cidr", cluster); err != nil {
		return p, err
	}
	if p.node, err = prefixes("--pod-cidr", node); err != nil {
		return p, err
	}
	for _, n := range p.node {
		inside := func(c netip.Prefix) bool { return c.Contains(n.Addr()) && c.Bits() <= n.Bits() }
		sameFamily := func(c netip.Prefix) bool { return c.Addr().Is4() == n.Addr().Is4() }
		if slices.ContainsFunc(p.cluster, sameFamily) && !slices.ContainsFunc(p.cluster, inside) {
			return p, usage("", "--pod-cidr %s is in no --cluster-cidr", n)
		}
	}
	return p, nil
}

func prefixes(flag string, texts []string) (list []netip.Prefix, err error) {
	for _, text := range texts {
		p, err := netip.ParsePrefix(text)
		if err != nil || p != p.Masked() {
			return nil, usage("", "%s %q: want the prefix of a network, as 10.244.0.0/16", flag, text)
		}
		list = append(list, p)
	}
	return list, nil
}

// config is the network's configuration, for a runtime or as containerd's template.
func (p pods) config() []byte {
	ranges, routes := templateRanges, templateRoutes
	if len(p.node) > 0 {
		ranges, routes = p.ownRanges(), p.defaultRoutes()
	}
	outside := ""
	for i, c := range p.cluster {
		outside += fmt.Sprintf("%s%q", strings.Repeat(", ", min(i, 1)), c)
	}
	return fmt.Appendf(nil, `{
  "cniVersion": "1.0.0",
  "name": "pods",
  "plugins": [
    {
      "type": "patchbay",
      "capabilities": {"portMappings": true, "bandwidth": true},
      "plugins": [
        {
          "type": "ptp",
          "ipMasq": true,
          "ipMasqOutside": [%s],
          "ipam": {
            "type": "host-local",
            "ranges": [%s],
            "routes": [%s]
          }
        },
        {"type": "portmap", "snat": true, "capabilities": {"portMappings": true}},
        {"type": "bandwidth", "capabilities": {"bandwidth": true}}
      ]
    }
  ]
}
`, outside, ranges, routes)
}

func (p pods) ownRanges() string {
	var list []string
	for _, n := range p.node {
		list = append(list, fmt.Sprintf(`[{"subnet": "%s"}]`, n))
	}
	return strings.Join(list, ", ")
}

func (p pods) defaultRoutes() string {
	var list []string
	for _, n := range p.node {
		dst := "::/0"
		if n.Addr().Is4() {
			dst = "0.0.0.0/0"
		}
		if text := fmt.Sprintf(`{"dst": "%s"}`, dst); !slices.Contains(list, text) {
			list = append(list, text)
		}
	}
	return strings.Join(list, ", ")
}

// writePods puts the network down: the runtime's configuration when the node's prefixes are
// given, else the template. It writes only what differs, since a runtime reads its
// directory again after each change, and then pods wait (docs/kubernetes.md).
func (a *app) writePods(p pods) (path string, changed bool, err error) {
	path, data := a.podTemplate(), append([]byte(templateMark), p.config()...)
	if len(p.node) > 0 {
		path, data = a.podNetwork(), p.config()
	}
	old, err := durable.ReadConf(path)
	switch {
	case err == nil && bytes.Equal(old, data):
		return path, false, nil
	case err == nil && !ownPods(old):
		return "", false, spec.Errorf(spec.CodeInvalidConfig, "install: %s is not of patchbay install --kubernetes: move it away", path)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return "", false, fmt.Errorf("install: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", false, fmt.Errorf("install: %w", err)
	}
	if err := durable.WriteDurable(path, data, 0o644); err != nil {
		return "", false, fmt.Errorf("install: %w", err)
	}
	return path, true, nil
}

// ownPods reports whether a file was written by this command: by the mark of the template,
// or because our form of a network says so.
func ownPods(data []byte) bool {
	head, _, _ := bytes.Cut(pods{}.config(), []byte(`"ipMasqOutside"`)) // the same for all prefixes
	return bytes.HasPrefix(data, []byte(templateMark)) || bytes.HasPrefix(data, head)
}

// removePodTemplate removes the template, if it is ours. The network stays: pods use it.
func (a *app) removePodTemplate() error {
	data, err := durable.ReadConf(a.podTemplate())
	if err != nil || !bytes.HasPrefix(data, []byte(templateMark)) {
		return nil //nolint:nilerr // no file of ours
	}
	return durable.Remove(a.podTemplate())
}

// podText says what was written, and what containerd must be told.
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
