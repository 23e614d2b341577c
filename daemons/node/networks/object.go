// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package networks

import (
	"cmp"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/internal/npwg"
)

// resourceKey is the annotation by which a definition names the resource of a device plugin. It is not in the standard; Multus and
// the device plugins have it.
const resourceKey = "k8s.v1.cni.cncf.io/resourceName"

// These are the annotations by which the kubelet marks the API's copy of a static pod (pkg/kubelet/types/pod_update.go). The hash is
// the UID that the runtime gets.
const (
	mirrorKey = "kubernetes.io/config.mirror"
	hashKey   = "kubernetes.io/config.hash"
)

// Pod is a pod of this node.
type Pod struct {
	npwg.Pod // with the UID of the API

	RuntimeUID string // the UID that the runtime gets, another one than the API's for a static pod
	Created    time.Time
	Networks   string // the annotation that selects its networks
	Status     string // the annotation network-status, as the API server has it
	Exempt     bool   // no ADD is called for it: it has the node's network, or has finished
}

// Compare orders pods by their names.
func (p *Pod) Compare(other *Pod) int {
	return cmp.Or(strings.Compare(p.Namespace, other.Namespace), strings.Compare(p.Name, other.Name), strings.Compare(p.UID, other.UID))
}

// metadata is what an object's metadata has for us.
type metadata struct {
	Metadata struct {
		Namespace, Name, UID, ResourceVersion string
		CreationTimestamp                     time.Time
		Annotations                           map[string]string
	}
}

func (m *metadata) name() name { return name{m.Metadata.Namespace, m.Metadata.Name} }

var errUnnamed = errors.New("it has no name")

// read returns an object's name, and its value or nil if the copy has no such object.
func (c *Cluster) read(k Kind, object []byte) (n name, value any, err error) {
	if k == Definitions {
		n, value, err = readDefinition(object)
	} else {
		n, value, err = readPod(object, c.node)
	}
	if n.name == "" {
		return n, nil, errors.Join(err, errUnnamed)
	}
	return n, value, nil
}

// readDefinition returns no value if the configuration cannot be read: without one, a definition would stand for a file of the node.
func readDefinition(object []byte) (name, any, error) {
	var o struct {
		metadata
		Spec struct{ Config string }
	}
	if err := json.Unmarshal(object, &o); err != nil {
		return o.name(), nil, err
	}
	m := &o.Metadata
	return o.name(), npwg.Definition{
		Namespace: m.Namespace, Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion, Config: o.Spec.Config, Resource: m.Annotations[resourceKey],
	}, nil
}

// readPod returns no value if the pod is not on this node.
func readPod(object []byte, node string) (name, any, error) {
	var o struct {
		metadata
		Spec struct {
			NodeName    string
			HostNetwork bool
		}
		Status struct{ Phase string }
	}
	if err := json.Unmarshal(object, &o); err != nil || o.Spec.NodeName != node {
		return o.name(), nil, err
	}
	m := &o.Metadata
	p := Pod{
		Pod: npwg.Pod{Namespace: m.Namespace, Name: m.Name, UID: m.UID}, RuntimeUID: m.UID, Created: m.CreationTimestamp,
		Networks: m.Annotations[npwg.NetworksKey], Status: m.Annotations[npwg.StatusKey],
		Exempt: o.Spec.HostNetwork || o.Status.Phase == "Succeeded" || o.Status.Phase == "Failed",
	}
	if _, static := m.Annotations[mirrorKey]; static {
		p.RuntimeUID = m.Annotations[hashKey]
	}
	return o.name(), p, nil
}
