// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"maps"
	"strings"

	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// Conf is the configuration of this plugin.
type Conf struct {
	// Namespace is the namespace whose network policies apply to a container that is not a pod. The
	// runtime says which namespace a pod is in. Without a namespace, the plugin only checks the source
	// addresses of a container that is not a pod. Reference: none, ours only.
	Namespace string `json:"namespace"`

	// Labels are the labels of a container that is not a pod. The agent of the node uses them. Until it
	// does, each policy of the namespace counts as one that selects the container. Reference: none, ours
	// only.
	Labels map[string]string `json:"labels"`
}

// Load validates the configuration.
func (c *Conf) Load(r *plugin.Request) error {
	if in := r.InList; in != nil {
		switch in.Main {
		case "macvlan", "ipvlan", "host-device", "dummy", "loopback":
			return spec.Invalid("network policies cannot apply: a %s has no end on the host, so its packets do not pass the forward hook: use ptp or bridge", in.Main)
		}
	}
	if c.Namespace == "" {
		if len(c.Labels) > 0 {
			return spec.Invalid("labels without a namespace: name the namespace whose network policies select them")
		}
		return nil
	}
	if !isLabelName(c.Namespace) || strings.ToLower(c.Namespace) != c.Namespace || strings.ContainsAny(c.Namespace, "._") {
		return spec.Invalid("invalid namespace %.70q: it has lower-case letters, digits and '-', at most 63", c.Namespace)
	}
	for key, value := range c.Labels {
		prefix, name, prefixed := strings.Cut(key, "/")
		if !prefixed {
			prefix, name = "", key
		}
		if !isLabelName(name) || prefixed && !isLabelName(strings.ReplaceAll(prefix, ".", "")) || value != "" && !isLabelName(value) {
			return spec.Invalid("invalid label %.70q with the value %.70q", key, value).
				WithDetails("a name or a value has at most 63 letters, digits, '-', '_' and '.', and begins and ends with a letter or digit")
		}
	}
	return nil
}

// isLabelName reports whether a text may be the name or the value of a label.
func isLabelName(s string) bool {
	const alnum = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
	return s != "" && len(s) <= 63 && strings.Trim(s, alnum+"-_.") == "" && strings.Trim(s, "-_.") == s
}

// who returns the pod or the container to which policies apply, or nil if there is none. Podman
// names its containers in K8S_POD_NAME, without a namespace. They are no pods.
func who(r *plugin.Request) (*record.Policed, error) {
	args, err := r.CNIArgs()
	if err != nil {
		return nil, err
	}
	if _, isPod := spec.LookupArg(args, "K8S_POD_NAMESPACE"); isPod {
		pod := spec.Pod(args)
		if pod == "" {
			return nil, spec.Errorf(spec.CodeInvalidEnvironment, "K8S_POD_NAMESPACE and K8S_POD_NAME of CNI_ARGS are no names of a namespace and a pod: which network policies apply is not known")
		}
		namespace, name, _ := strings.Cut(pod, "/")
		uid, _ := spec.LookupArg(args, "K8S_POD_UID")
		return &record.Policed{Namespace: namespace, Name: name, UID: uid}, nil
	}
	c := plugin.ConfOf[Conf](r)
	if c.Namespace == "" {
		return nil, nil
	}
	labels := map[string]string{}
	maps.Copy(labels, c.Labels)
	return &record.Policed{Namespace: c.Namespace, Name: r.ContainerID, Labels: labels}, nil
}
