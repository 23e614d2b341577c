// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package npwg

import (
	"errors"
	"fmt"
	"strings"

	"github.com/patchbay-net/patchbay/spec"
)

// ErrAnnotation means that the annotation is not valid. The standard then ignores the whole annotation; Multus fails the pod.
var ErrAnnotation = errors.New("annotation " + NetworksKey + " is not valid")

// Selection is one network that a pod asks for.
type Selection struct {
	Namespace string // of the definition
	Name      string // of the definition
	Interface string // asked for, or given by Name; "" before that
	Ask       Ask
}

// String names the definition.
func (s *Selection) String() string { return s.Namespace + "/" + s.Name }

// Parse returns the networks that an annotation selects, in its order (§4.1). podNamespace is the namespace of the pod. An
// annotation of blanks selects none. An error wraps ErrAnnotation.
func Parse(annotation, podNamespace string) ([]Selection, error) {
	parse := parseShort
	if strings.ContainsAny(annotation, "[{\"") { // as Multus decides
		parse = parseJSON
	}
	list, err := parse(annotation, podNamespace)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrAnnotation, err)
	}
	return list, nil
}

// parseShort reads a list such as "a, ns/b, c@eth1" (§4.1.1). Multus added the name of the interface.
func parseShort(annotation, podNamespace string) (list []Selection, err error) {
	if strings.TrimSpace(annotation) == "" {
		return nil, nil
	}
	for i, item := range strings.Split(annotation, ",") {
		s, err := parseItem(strings.TrimSpace(item), podNamespace)
		if err != nil {
			return nil, fmt.Errorf("network %d, %.100q: %w", i+1, item, err)
		}
		list = append(list, s)
	}
	return list, nil
}

func parseItem(item, podNamespace string) (Selection, error) {
	full, ifName, named := strings.Cut(item, "@")
	namespace, name, ok := strings.Cut(full, "/")
	if !ok {
		namespace, name = podNamespace, full
	}
	for _, label := range []string{namespace, name} {
		if !isLabel(label) {
			return Selection{}, fmt.Errorf("%.100q is no name: want [namespace/]name[@interface], of lower-case letters, digits and '-'", label)
		}
	}
	if named {
		if err := spec.ValidateNewIfName(ifName); err != nil {
			return Selection{}, err
		}
	}
	return Selection{Namespace: namespace, Name: name, Interface: ifName}, nil
}

// IsDefinition reports whether an object of Kubernetes may have this namespace and this name. Such names are safe in paths of files.
func IsDefinition(namespace, name string) bool { return isLabel(namespace) && isName(name) }

// isLabel reports whether s is a name as the short form has it (§3.3), a label of RFC 1123. The recommended length is not enforced.
func isLabel(s string) bool {
	return s != "" && strings.Trim(s, labelChars) == "" && strings.Trim(s, "-") == s
}

const labelChars = "abcdefghijklmnopqrstuvwxyz0123456789-"

// isName reports whether s may be the name of a Kubernetes object, which may also have dots. The JSON form takes it.
func isName(s string) bool {
	return s != "" && len(s) <= 253 && strings.Trim(s, labelChars+".") == "" && strings.Trim(s, "-.") == s && !strings.Contains(s, "..")
}

// Name gives each selection without an interface the name net1, net2 and so on, by its place in the list, as Multus does: a
// selection that names its interface uses up its number, too. taken are the interfaces that the pod has already.
// A name that is taken is an error (§4.1.2.1.5).
func Name(list []Selection, taken ...string) error {
	has := make(map[string]string, len(list))
	for _, name := range taken {
		has[name] = "the pod's default network"
	}
	for i := range list {
		s := &list[i]
		if s.Interface == "" {
			s.Interface = fmt.Sprintf("net%d", i+1)
		}
		if other, ok := has[s.Interface]; ok {
			return fmt.Errorf("network %s cannot have the interface %s, which %s has: name another one in the annotation, such as %s@net%d",
				s, s.Interface, other, s, len(list)+1)
		}
		has[s.Interface] = "network " + s.String()
	}
	return nil
}

// GlobalNamespace is the namespace whose definitions all pods may use, if nothing else is configured, as in Multus.
const GlobalNamespace = "default"

// Allowed returns an error if a pod may not use definitions of another namespace. Definitions of the namespaces in global are
// for all pods. The text is that of Multus' namespaceIsolation (§7.4).
func Allowed(s *Selection, podNamespace string, global []string) error {
	if s.Namespace == podNamespace {
		return nil
	}
	for _, g := range global {
		if s.Namespace == g {
			return nil
		}
	}
	return fmt.Errorf("namespace isolation enabled, annotation violates permission, pod is in namespace %s but refers to target namespace %s", podNamespace, s.Namespace)
}
