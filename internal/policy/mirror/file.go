// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package mirror

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/policy"
	"github.com/patchbay-net/patchbay/internal/sealed"
)

// Schema is the version of the format. Read isolates if a file has another one.
const Schema = 1

// magic is the first word of each file (internal/sealed). If a file lost a line unnoticed, it would isolate less.
const magic = "patchbay-policy"

// maxSize is the size in bytes of the largest file. Files have a few hundred bytes.
const maxSize = 1 << 20

// content is what a file says. The names say whose file it is: no name in head, and no pod in the
// file of a namespace.
type content struct {
	namespace, pod string
	policy.Decision
}

// encode returns a file's text. It has lines and not JSON, because a pod that 1,000 policies select
// has a file of 40 kB, and encoding/json takes a millisecond to read that.
func (c content) encode() []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "namespace %s\npod %s\nidentity %s\n", c.namespace, c.pod, c.Identity)
	for d, s := range c.Sides {
		name := policy.Direction(d).String()
		if s.Isolated {
			fmt.Fprintf(&b, "%s isolated\n", name)
		}
		if s.Unknown {
			fmt.Fprintf(&b, "%s unknown\n", name)
		}
		if c.Against[d] {
			fmt.Fprintf(&b, "%s against\n", name)
		}
		for _, chain := range s.Chains {
			fmt.Fprintf(&b, "%s chain %s\n", name, chain)
		}
	}
	for _, set := range c.Sets {
		fmt.Fprintf(&b, "set %s\n", set)
	}
	return sealed.Seal(magic, Schema, []byte(b.String()))
}

// decode reads a file's text and checks whose file it is.
func decode(data []byte, namespace, pod string) (policy.Decision, error) {
	c, err := parse(data)
	if err == nil && (c.namespace != namespace || c.pod != pod) {
		err = fmt.Errorf("it is the file of pod %q of namespace %q", c.pod, c.namespace)
	}
	if err != nil {
		return policy.Decision{}, err
	}
	return c.Decision, nil
}

// parse reads a file's text.
func parse(data []byte) (c content, err error) {
	body, err := sealed.Open(magic, Schema, data)
	if err != nil {
		return c, err
	}
	for text := range strings.Lines(string(body)) {
		if err := c.add(strings.TrimSuffix(text, "\n")); err != nil {
			return c, err
		}
	}
	return c, nil
}

// add reads one line.
func (c *content) add(line string) error {
	key, value, _ := strings.Cut(line, " ")
	switch key {
	case "namespace":
		c.namespace = value
	case "pod":
		c.pod = value
	case "identity":
		n, err := strconv.ParseUint(value, 16, 32)
		c.Identity = policy.Number(n)
		return err
	case "ingress":
		return c.addTo(policy.Ingress, value)
	case "egress":
		return c.addTo(policy.Egress, value)
	case "set":
		c.Sets = append(c.Sets, value)
	default:
		return fmt.Errorf("line %.100q is not known", line)
	}
	return nil
}

func (c *content) addTo(d policy.Direction, value string) error {
	s := &c.Sides[d]
	what, name, _ := strings.Cut(value, " ")
	switch what {
	case "against":
		c.Against[d] = true
	case "isolated":
		s.Isolated = true
	case "unknown":
		s.Unknown = true
	case "chain":
		s.Chains = append(s.Chains, name)
	default:
		return fmt.Errorf("line %.100q is not known", value)
	}
	return nil
}

// closed isolates a pod in both directions. Its reason is that a policy may select the pod.
func closed() policy.Decision {
	s := policy.Side{Isolated: true, Unknown: true}
	return policy.Decision{Sides: [2]policy.Side{s, s}}
}

// InForce is the file that the agent locks from the load of its first program until its end. Meanwhile
// the agent removes former pods from programs; at other times ADDs do.
func InForce(p paths.Paths) string { return filepath.Join(p.State, "node", "policy.lock") }

// below is the path of the mirror below the state directory.
func below(more ...string) []string { return append([]string{"node", "policy"}, more...) }

// dir is the mirror's directory.
func dir(p paths.Paths) string { return filepath.Join(p.State, "node", "policy") }

// These are the names in the directory.
const (
	headFile      = "head"
	podsDir       = "pods"
	namespacesDir = "namespaces"
)

// plain reports whether a name is safe as the name of a file. Names of namespaces and UIDs are.
func plain(name string) bool {
	for _, c := range []byte(name) {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return name != "" && len(name) <= 128
}
