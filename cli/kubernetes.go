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

// templateMark is the first line of the template, a comment in Go's template language. install
// replaces or removes only a file that begins with it.
const templateMark = "{{/* patchbay install --kubernetes */ -}}\n"

// The parts of the template that list the pods' ranges and routes. containerd fills them in
// when the kubelet has sent it the node's podCIDRs.
const (
	templateRanges = `{{range $i, $r := .PodCIDRRanges}}{{if $i}}, {{end}}[{"subnet": "{{$r}}"}]{{end}}`
	templateRoutes = `{{range $i, $r := .Routes}}{{if $i}}, {{end}}{"dst": "{{$r}}"}{{end}}`
)

// pods describes the network of a Kubernetes node on which no agent runs.
type pods struct {
	cluster []netip.Prefix // the addresses of all pods of the cluster: traffic to them is not masqueraded
	node    []netip.Prefix // the addresses of this node's pods; if empty, the runtime fills in the template
}

// podTemplate returns the path of the template. It is outside the directory of networks, where
// a runtime would read it as a network.
func (a *app) podTemplate() string { return filepath.Join(a.paths.Etc, "patchbay.template") }

// podNetwork returns the path of the network's file, which is written when the node's prefixes
// are given.
func (a *app) podNetwork() string { return filepath.Join(confDir(a.getenv), "10-pods.conflist") }

// parsePods parses the prefixes of --cluster-cidr and --pod-cidr.
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

// config returns the network's configuration. Without node prefixes it is a template for
// containerd.
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

// writePods writes the network's configuration if the node's prefixes are given, else the
// template. It does not write a file that is up to date: a runtime reads its directory again
// after each change, and new pods wait meanwhile (docs/kubernetes.md).
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

// ownPods reports whether this command wrote the file: it begins with the template's mark, or
// exactly as config begins.
func ownPods(data []byte) bool {
	head, _, _ := bytes.Cut(pods{}.config(), []byte(`"ipMasqOutside"`)) // these bytes are the same for all prefixes
	return bytes.HasPrefix(data, []byte(templateMark)) || bytes.HasPrefix(data, head)
}

// removePodTemplate removes the template if install wrote it. It keeps the network's file,
// because pods use it.
func (a *app) removePodTemplate() error {
	data, err := durable.ReadConf(a.podTemplate())
	if err != nil || !bytes.HasPrefix(data, []byte(templateMark)) {
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
