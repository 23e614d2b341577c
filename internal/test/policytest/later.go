// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/patchbay-net/patchbay/internal/test/policytest/api"
)

// laterFields is an annotation of a ClusterNetworkPolicy. It lists the objects of its JSON, such as
// "spec.ingress.0.from.1", that have a field of a later version of the API. The Go types have no room for it.
const laterFields = "policytest/later-fields"

// JSON returns an object as the API server serves it, with the fields of a later version that a generator gave it.
func JSON(object any) ([]byte, error) {
	text, err := json.Marshal(object)
	cnp, ok := object.(api.ClusterNetworkPolicy)
	if err != nil || !ok || cnp.Annotations[laterFields] == "" {
		return text, err
	}
	var tree any
	if err := json.Unmarshal(text, &tree); err != nil {
		return nil, err
	}
	for _, path := range later(&cnp) {
		if object, ok := below(tree, path).(map[string]any); ok {
			object["laterField"] = map[string]any{"any": true}
		}
	}
	return json.Marshal(tree)
}

func later(cnp *api.ClusterNetworkPolicy) []string {
	return strings.Split(cnp.Annotations[laterFields], ",")
}

// below returns what is in a JSON value at a path, or nil.
func below(v any, path string) any {
	for _, word := range strings.Split(path, ".") {
		switch parent := v.(type) {
		case map[string]any:
			v = parent[word]
		case []any:
			i, err := strconv.Atoi(word)
			if err != nil || i >= len(parent) {
				return nil
			}
			v = parent[i]
		default:
			return nil
		}
	}
	return v
}

// giveLaterField gives a random object of a policy a field of a later version, or takes such fields away.
func (g *Generator) giveLaterField(cnp *api.ClusterNetworkPolicy) {
	delete(cnp.Annotations, laterFields)
	if !g.chance(8) {
		return
	}
	text, err := json.Marshal(cnp)
	var tree map[string]any
	if err == nil {
		err = json.Unmarshal(text, &tree)
	}
	if err != nil {
		panic(fmt.Sprintf("policytest: a policy that is no JSON: %v", err))
	}
	if cnp.Annotations == nil {
		cnp.Annotations = make(map[string]string)
	}
	cnp.Annotations[laterFields] = pick(g, objectsIn("spec", tree["spec"])...)
}

// objectsIn returns the paths of the JSON objects in a value. Labels are no objects: their keys are no fields.
func objectsIn(path string, v any) (paths []string) {
	switch v := v.(type) {
	case map[string]any:
		paths = append(paths, path)
		for key, value := range v {
			if key != "matchLabels" {
				paths = append(paths, objectsIn(path+"."+key, value)...)
			}
		}
	case []any:
		for i, value := range v {
			paths = append(paths, objectsIn(path+"."+strconv.Itoa(i), value)...)
		}
	}
	slices.Sort(paths)
	return paths
}

// hasLater tells whether the object at a path, or one in it, has a field of a later version.
func hasLater(cnp *api.ClusterNetworkPolicy, path string) bool {
	return slices.ContainsFunc(later(cnp), func(at string) bool { return at == path || strings.HasPrefix(at, path+".") })
}

// asUnderstood returns the policy without what a later version gave its meaning. A rule with a field that is
// not known, or beside such a field, keeps only its action and one peer without a field: it is closed as a
// rule with a peer of a later version. If the subject has such a field, the policy denies every pod everything.
func asUnderstood(cnp *api.ClusterNetworkPolicy) *api.ClusterNetworkPolicy {
	if cnp.Annotations[laterFields] == "" {
		return cnp
	}
	out := *cnp
	out.Spec.Ingress, out.Spec.Egress = slices.Clone(cnp.Spec.Ingress), slices.Clone(cnp.Spec.Egress)
	every := slices.Contains(later(cnp), "spec")
	for i := range out.Spec.Ingress {
		if r := &out.Spec.Ingress[i]; every || hasLater(cnp, fmt.Sprintf("spec.ingress.%d", i)) {
			r.From = []api.ClusterNetworkPolicyIngressPeer{{}}
		}
	}
	for i := range out.Spec.Egress {
		if r := &out.Spec.Egress[i]; every || hasLater(cnp, fmt.Sprintf("spec.egress.%d", i)) {
			r.To = []api.ClusterNetworkPolicyEgressPeer{{}}
		}
	}
	if hasLater(cnp, "spec.subject") {
		denyAll(&out.Spec)
	}
	return &out
}

func denyAll(spec *api.ClusterNetworkPolicySpec) {
	deny := api.ClusterNetworkPolicyRuleActionDeny
	spec.Subject = api.ClusterNetworkPolicySubject{Pods: &api.NamespacedPod{}}
	spec.Ingress = []api.ClusterNetworkPolicyIngressRule{{Action: deny, From: []api.ClusterNetworkPolicyIngressPeer{{}}}}
	spec.Egress = []api.ClusterNetworkPolicyEgressRule{{Action: deny, To: []api.ClusterNetworkPolicyEgressPeer{{}}}}
}
