// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package podnet writes the network file of a Kubernetes node's pods, and recognizes the files that it has written. Both
// `patchbay install --kubernetes` and the agent write the file, so each recognizes the other's.
package podnet

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/spec"
)

// These are the names of the pods' network and of its file.
const (
	Name = "pods"
	File = "10-pods.conflist"
)

// templateMark is the first line of the template, a comment in Go's template language. We replace
// or remove a template only if it begins with this line.
const templateMark = "{{/* patchbay install --kubernetes */ -}}\n"

// These parts of the template list the pods' ranges and routes. containerd fills them in when it
// gets the node's podCIDRs from the kubelet.
const (
	templateRanges = `{{range $i, $r := .PodCIDRRanges}}{{if $i}}, {{end}}[{"subnet": "{{$r}}"}]{{end}}`
	templateRoutes = `{{range $i, $r := .Routes}}{{if $i}}, {{end}}{"dst": "{{$r}}"}{{end}}`
)

// Network is the network of a node's pods.
type Network struct {
	Cluster []netip.Prefix // the addresses of all pods of the cluster: traffic to them is not masqueraded
	Node    []netip.Prefix // the addresses of this node's pods; if empty, the runtime fills in the template
	MTU     int            // bytes, of the pods' links; 0: the plugin's default
	Pool    Pool

	Containers Containers
	Further    Further

	// Encrypted makes an ADD refuse packets to Cluster that no other route takes, because the agent's
	// routes are missing after a boot.
	Encrypted bool
}

// Containers says which network policies apply to containers of the network that are not pods, as those
// of `docker run --network pods`. Without a namespace, none apply.
type Containers struct {
	Namespace string
	Labels    map[string]string
}

// policy returns the configuration of the plugin policy.
func (c Containers) policy() string {
	if c.Namespace == "" {
		return `{"type": "policy"}`
	}
	labels, err := json.Marshal(c.Labels)
	if err != nil || len(c.Labels) == 0 {
		labels = []byte("{}")
	}
	return fmt.Sprintf(`{"type": "policy", "namespace": %q, "labels": %s}`, c.Namespace, labels)
}

// Further says whether pods may have further networks, by the plugin networks (docs/plugins/networks.md).
type Further struct {
	On       bool
	BinDir   string // where the runtime's host has the plugins of other programs for them; empty: only those of this program are found
	Isolated bool   // pods use only definitions of their own namespace, and of npwg.GlobalNamespace
}

// plugin returns the configuration of the plugin networks, behind another one. It is the last one of the list.
func (f Further) plugin() string {
	if !f.On {
		return ""
	}
	more := ""
	if f.BinDir != "" {
		more += fmt.Sprintf("\"binDir\": %q, ", f.BinDir)
	}
	if f.Isolated {
		more += `"namespaceIsolation": true, `
	}
	return fmt.Sprintf(",\n        {\"type\": \"networks\", %s\"capabilities\": {%s}}", more, passesAnnotations)
}

// capability returns what the list declares for the plugin networks.
func (f Further) capability() string {
	if !f.On {
		return ""
	}
	return ", " + passesAnnotations
}

// passesAnnotations is the capability by which a runtime passes the annotations of a pod.
const passesAnnotations = `"io.kubernetes.cri.pod-annotations": true`

// Pool says where the network's addresses are reserved. If our network replaces another one, it
// keeps that network's pool: pods of both run on the node, and no address is given out twice.
type Pool struct {
	Name    string // of the network; empty: Name
	DataDir string // of host-local; empty: its default
}

// PoolOf returns the pool of a network's configuration. If the file is no configuration, the pool
// is empty.
func PoolOf(file []byte) (p Pool) {
	var c conf
	if json.Unmarshal(file, &c) != nil || spec.ValidateNetworkName(c.Name) != nil {
		return Pool{}
	}
	return Pool{Name: c.Name, DataDir: c.dataDir()}
}

// conf is a list of plugins, or one plugin.
type conf struct {
	Name    string                         `json:"name"`
	IPAM    struct{ Type, DataDir string } `json:"ipam"`
	Plugins []conf                         `json:"plugins"`
}

// dataDir returns the first directory that is configured for host-local.
func (c *conf) dataDir() string {
	if c.IPAM.Type == "host-local" && filepath.IsAbs(c.IPAM.DataDir) {
		return c.IPAM.DataDir
	}
	for i := range c.Plugins {
		if dir := c.Plugins[i].dataDir(); dir != "" {
			return dir
		}
	}
	return ""
}

// Text returns the network's configuration. Without this node's prefixes it returns the template
// for containerd.
func (n Network) Text() []byte {
	if len(n.Node) == 0 {
		return append([]byte(templateMark), n.config(templateRanges, templateRoutes)...)
	}
	return n.config(n.ownRanges(), n.defaultRoutes())
}

// config returns the configuration. Its cniVersion is 1.0.0 for runtimes of 2022. Newer runtimes
// choose from cniVersions; with 1.1.0 they call STATUS. They must not call GC, because its list has
// only the containers of one runtime, and other runtimes share the network. Both keys are at the
// end, because IsOurs compares the beginning of the file.
func (n Network) config(ranges, routes string) []byte {
	outside, mtu, dataDir, refused := "", "", "", ""
	for i, c := range n.Cluster {
		outside += fmt.Sprintf("%s%q", strings.Repeat(", ", min(i, 1)), c)
	}
	if n.Encrypted {
		refused = fmt.Sprintf("\n          \"unreachable\": [%s],", outside)
	}
	if n.MTU > 0 {
		mtu = fmt.Sprintf("\n          \"mtu\": %d,", n.MTU)
	}
	if n.Pool.DataDir != "" {
		dataDir = fmt.Sprintf("\n            \"dataDir\": %q,", n.Pool.DataDir)
	}
	return fmt.Appendf(nil, `{
  "cniVersion": "1.0.0",
  "name": %q,
  "plugins": [
    {
      "type": "patchbay",
      "capabilities": {"portMappings": true, "bandwidth": true%s},
      "plugins": [
        {
          "type": "ptp",
          "ipMasq": true,
          "ipMasqOutside": [%s],%s%s
          "ipam": {
            "type": "host-local",%s
            "ranges": [%s],
            "routes": [%s]
          }
        },
        {"type": "portmap", "snat": true, "capabilities": {"portMappings": true}},
        {"type": "bandwidth", "capabilities": {"bandwidth": true}},
        {"type": "firewall", "acceptNew": true},
        %s%s
      ],
      "builtIn": true
    }
  ],
  "cniVersions": ["1.0.0", "1.1.0"],
  "disableGC": true
}
`, cmp.Or(n.Pool.Name, Name), n.Further.capability(), outside, refused, mtu, dataDir, ranges, routes, n.Containers.policy(), n.Further.plugin())
}

func (n Network) ownRanges() string {
	var list []string
	for _, p := range n.Node {
		list = append(list, fmt.Sprintf(`[{"subnet": "%s"}]`, p))
	}
	return strings.Join(list, ", ")
}

func (n Network) defaultRoutes() string {
	var list []string
	for _, p := range n.Node {
		if text := fmt.Sprintf(`{"dst": "%s"}`, spec.DefaultDst(p.Addr().Is4())); !slices.Contains(list, text) {
			list = append(list, text)
		}
	}
	return strings.Join(list, ", ")
}

// IsTemplate reports whether a file begins with the mark of our template.
func IsTemplate(file []byte) bool { return bytes.HasPrefix(file, []byte(templateMark)) }

// IsOurs reports whether Text could have returned a file: it is our template, or it begins like our
// configuration.
func IsOurs(file []byte) bool {
	pool := PoolOf(file)
	return IsTemplate(file) || bytes.HasPrefix(file, Network{Pool: pool}.head()) || bytes.HasPrefix(file, Network{Pool: pool, Further: Further{On: true}}.head())
}

// head returns the beginning of the configuration, which is the same for all prefixes.
func (n Network) head() []byte {
	head, _, _ := bytes.Cut(n.config("", ""), []byte(`"ipMasqOutside"`))
	return head
}

// Prefixes parses the values of a flag. Each must be the prefix of a network.
func Prefixes(flag string, texts []string) (list []netip.Prefix, err error) {
	for _, text := range texts {
		p, err := netip.ParsePrefix(text)
		if err != nil || p != p.Masked() {
			return nil, fmt.Errorf("%s %q: want the prefix of a network, such as 10.244.0.0/16", flag, text)
		}
		list = append(list, p)
	}
	return list, nil
}
