// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package kubernetes holds the manifest and the Helm chart of the Kubernetes agent.
package kubernetes

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	admission "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/patchbay-net/patchbay/daemons/node/lan"
	"github.com/patchbay-net/patchbay/daemons/test/chart"
	"github.com/patchbay-net/patchbay/internal/npwg"
)

var update = flag.Bool("update", false, "write the manifest that the chart makes")

// objects decodes a manifest, and fails for a field that Kubernetes does not know. more are the objects that it has
// besides those of the default values.
func objects(t *testing.T, manifest string, more ...any) (ds appsv1.DaemonSet, role rbacv1.ClusterRole) {
	t.Helper()
	into := append([]any{&corev1.ServiceAccount{}, &role, &rbacv1.ClusterRoleBinding{}, &ds}, more...)
	docs := strings.Split(manifest, "\n---\n")
	if len(docs) != len(into) {
		t.Fatalf("%d objects, want %d", len(docs), len(into))
	}
	for i, doc := range docs {
		if err := yaml.UnmarshalStrict([]byte(doc), into[i]); err != nil {
			t.Fatalf("%T: %v", into[i], err)
		}
	}
	return ds, role
}

// TestManifest compares the manifest with the chart's output for its default values.
func TestManifest(t *testing.T) {
	want := "# Made from chart/ by `go test ./daemons/dist/kubernetes -update`. Change --cluster-cidr to your cluster's.\n" + chart.Render(t, nil)
	if *update {
		if err := os.WriteFile("patchbay.yaml", []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile("patchbay.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Error("patchbay.yaml is not what the chart makes: run `go test ./daemons/dist/kubernetes -update`")
	}
	objects(t, want)
}

// TestNotes: what helm says leads to commands of docs/kubernetes.md, and fits the values.
func TestNotes(t *testing.T) {
	page, err := os.ReadFile("../../../docs/kubernetes.md")
	if err != nil {
		t.Fatal(err)
	}
	notes := chart.Notes(t, func(v map[string]any) { v["clusterCIDRs"] = []any{"10.1.0.0/16", "fd01::/48"} })
	gone := chart.Notes(t, func(v map[string]any) { v["uninstall"] = true })
	for _, want := range []string{"addresses for pods: 10.1.0.0/16, fd01::/48.", "enforces network policies", "--set uninstall=true"} {
		if !strings.Contains(notes, want) || strings.Contains(gone, want) {
			t.Errorf("%q: want it in\n%s\nand not in\n%s", want, notes, gone)
		}
	}
	for line := range strings.Lines(gone) {
		if command := strings.TrimSpace(line); strings.HasPrefix(line, "  ") && !strings.Contains(string(page), command) {
			t.Errorf("docs/kubernetes.md has no %s", command)
		}
	}
	if off := chart.Notes(t, func(v map[string]any) { v["networkPolicy"] = false }); strings.Contains(off, "policies") {
		t.Errorf("no policies are enforced:\n%s", off)
	}
}

// TestUninstall compares the manifest that uninstalls with the chart's output, and checks that it takes
// the place of the agent's, with the same rights, and removes what the agents made.
func TestUninstall(t *testing.T) {
	made := chart.Render(t, func(v map[string]any) { v["uninstall"] = true })
	want := "# Made from chart/ by `go test ./daemons/dist/kubernetes -update`. Change its image as you changed that of patchbay.yaml.\n" + made
	if *update {
		if err := os.WriteFile("uninstall.yaml", []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile("uninstall.yaml"); err != nil || string(got) != want {
		t.Errorf("uninstall.yaml is not what the chart makes: run `go test ./daemons/dist/kubernetes -update` (%v)", err)
	}
	ds, _ := objects(t, want)
	agent, _ := objects(t, chart.Render(t, nil))
	clean, stays, was := ds.Spec.Template.Spec.InitContainers[0], ds.Spec.Template.Spec.Containers[0], agent.Spec.Template.Spec.Containers[0]
	if !slices.Equal(clean.Args, []string{"node", "--cni-conf-dir=/host/etc/cni/net.d", "clean", "--wait"}) || !slices.Equal(stays.Args[2:], []string{"clean", "--stay"}) {
		t.Errorf("it runs %q, then %q", clean.Args, stays.Args)
	}
	for _, c := range []corev1.Container{clean, stays} {
		if c.Image != was.Image || !reflect.DeepEqual(c.SecurityContext, was.SecurityContext) || !reflect.DeepEqual(c.VolumeMounts, was.VolumeMounts) {
			t.Errorf("%s differs from the agent: %+v", c.Name, c)
		}
	}
	if ds.Name != agent.Name || !reflect.DeepEqual(ds.Spec.Selector, agent.Spec.Selector) || ds.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable.String() != "100%" {
		t.Errorf("it does not replace all agents at once: %s %v %+v", ds.Name, ds.Spec.Selector, ds.Spec.UpdateStrategy)
	}
}

// TestSchema checks that the schema has every value of the chart and no other, and that Helm will
// refuse mistakes in them.
func TestSchema(t *testing.T) {
	for name, change := range map[string]map[string]any{
		"an unknown value":   {"clusterCIDR": "10.244.0.0/16"},
		"an unknown word":    {"transport": "wiregaurd"},
		"a wrong case":       {"policyDefault": "Allow"},
		"no list":            {"clusterCIDRs": "10.244.0.0/16"},
		"an empty list":      {"clusterCIDRs": []string{}},
		"no prefix":          {"clusterCIDRs": []string{"10.244.0.0"}},
		"a prefix twice":     {"clusterCIDRs": []string{"10.244.0.0/16", "10.244.0.0/16"}},
		"a port as text":     {"port": "4789"},
		"a port too large":   {"listenPort": 70000},
		"a relative path":    {"cniBinDir": "opt/cni/bin"},
		"a label's number":   {"containersLabels": map[string]any{"tier": 2}},
		"a word for a truth": {"networkPolicy": "off"},
	} {
		if err := chart.Validate(change); err == nil {
			t.Errorf("%s passes: %v", name, change)
		}
	}
	var schema struct{ Properties map[string]any }
	text, err := os.ReadFile("chart/values.schema.json")
	if err := errors.Join(err, yaml.Unmarshal(text, &schema)); err != nil {
		t.Fatal(err)
	}
	delete(schema.Properties, "global") // Helm adds it if the chart is part of another one
	chart.Render(t, func(v map[string]any) {
		if has, want := slices.Sorted(maps.Keys(schema.Properties)), slices.Sorted(maps.Keys(v)); !slices.Equal(has, want) {
			t.Errorf("the schema has %q, the chart %q", has, want)
		}
	})
}

// TestUpgradesKeepValues: each `helm upgrade` of the documentation keeps the values of the operator. Without
// a flag, Helm sets those that are not named to the chart's defaults.
func TestUpgradesKeepValues(t *testing.T) {
	pages, err := filepath.Glob("../../../docs/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatal(pages, err)
	}
	for _, page := range append(pages, "../../../README.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, "$ helm upgrade") && !strings.Contains(line, " --reset-then-reuse-values ") {
				t.Errorf("%s: %s", page, line)
			}
		}
	}
}

// TestRights fails when the role allows more, or less, than package node asks for.
func TestRights(t *testing.T) {
	ds, role := objects(t, chart.Render(t, nil))
	if s := ds.Spec.Template.Spec.Containers[0].SecurityContext; s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault || s.SELinuxOptions != nil {
		t.Errorf("the security context is %+v", s)
	}
	if c := ds.Spec.Template.Spec.Containers[0].SecurityContext.Capabilities; !slices.Equal(c.Add, []corev1.Capability{"NET_ADMIN", "NET_RAW"}) || !slices.Equal(c.Drop, []corev1.Capability{"ALL"}) {
		t.Errorf("capabilities are %v", c)
	}
	want := []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"list", "watch"}},
		{APIGroups: []string{""}, Resources: []string{"events"}, Verbs: []string{"create"}},
		{APIGroups: []string{""}, Resources: []string{"namespaces"}, Verbs: []string{"list", "watch"}},
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list", "watch"}},
		{APIGroups: []string{"networking.k8s.io"}, Resources: []string{"networkpolicies"}, Verbs: []string{"list", "watch"}},
		{APIGroups: []string{"policy.networking.k8s.io"}, Resources: []string{"clusternetworkpolicies"}, Verbs: []string{"list", "watch"}},
		{APIGroups: []string{"apiextensions.k8s.io"}, Resources: []string{"customresourcedefinitions"}, ResourceNames: []string{"clusternetworkpolicies.policy.networking.k8s.io"}, Verbs: []string{"list", "watch"}},
	}
	if !slices.EqualFunc(role.Rules, want, func(a, b rbacv1.PolicyRule) bool { return a.String() == b.String() }) {
		t.Errorf("rights are %v, want %v", role.Rules, want)
	}
}

// TestPublishedRights: the page of the agent names what its role allows, and SECURITY.md the directories of the host that
// its container has, and no others.
func TestPublishedRights(t *testing.T) {
	ds, role := objects(t, chart.Render(t, func(v map[string]any) { v["transport"], v["ownNodeOnly"], v["services"] = "wireguard", false, true }))
	_, balancing, _ := balancers(t, nil)
	_, networking, _ := networked(t, nil)
	role.Rules = slices.Concat(role.Rules, balancing.Rules, networking.Rules)
	rights := section(t, "../../../docs/kubernetes.md", "| may | why |")
	for _, rule := range role.Rules {
		for _, resource := range rule.Resources {
			name := map[string]string{"nodes/status": "status of nodes", "customresourcedefinitions": "customresourcedefinition", "services/status": "status of services", "pods/status": "status of pods", "network-attachment-definitions": "networkattachmentdefinitions", "configmaps": "configmap"}[resource]
			if name = cmp.Or(name, resource); !strings.Contains(strings.ToLower(rights), name) {
				t.Errorf("docs/kubernetes.md does not say that the agent may %v %s", rule.Verbs, resource)
			}
		}
	}
	readOnly := make(map[string]bool)
	for _, m := range ds.Spec.Template.Spec.Containers[0].VolumeMounts {
		readOnly[m.Name] = m.ReadOnly
	}
	var want []string
	for _, v := range ds.Spec.Template.Spec.Volumes {
		if v.HostPath != nil {
			want = append(want, fmt.Sprintf("| `%s` | %s", v.HostPath.Path, map[bool]string{true: "reads", false: "writes"}[readOnly[v.Name]]))
		}
	}
	rows := strings.Split(strings.TrimSpace(section(t, "../../../SECURITY.md", "| path | |")), "\n")[1:]
	if !slices.EqualFunc(rows, want, strings.HasPrefix) {
		t.Errorf("SECURITY.md has\n%s\nand the manifest\n%s", strings.Join(rows, "\n"), strings.Join(want, "\n"))
	}
}

// section returns the table of a page with this header.
func section(t *testing.T, page, header string) string {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(text), header)
	if !found {
		t.Fatalf("%s has no table %q", page, header)
	}
	table, _, _ = strings.Cut(table, "\n\n")
	return table
}

// TestPlacement checks that the agent runs on every node, starts before other pods and is evicted
// last. Its resource requests are the measured values, and an update replaces all agents without an
// operator.
func TestPlacement(t *testing.T) {
	for name, change := range map[string]func(map[string]any){
		"defaults": nil,
		"changed": func(v map[string]any) {
			v["transport"], v["egressAddresses"], v["apiServerHost"] = "vxlan", false, "192.0.2.1"
		},
	} {
		t.Run(name, func(t *testing.T) {
			ds, _ := objects(t, chart.Render(t, change))
			pod := ds.Spec.Template.Spec
			if pod.PriorityClassName != "system-node-critical" || !pod.HostNetwork || pod.Affinity != nil {
				t.Errorf("priority class %q, host network %v, affinity %v", pod.PriorityClassName, pod.HostNetwork, pod.Affinity)
			}
			if !maps.Equal(pod.NodeSelector, map[string]string{corev1.LabelOSStable: "linux"}) {
				t.Errorf("the node selector is %v", pod.NodeSelector)
			}
			for _, effect := range []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute} {
				taint := corev1.Taint{Key: "any.example/taint", Value: "x", Effect: effect}
				if !slices.ContainsFunc(pod.Tolerations, func(o corev1.Toleration) bool { return tolerates(o, taint) }) {
					t.Errorf("the taint %s is not tolerated for good: %v", taint.ToString(), pod.Tolerations)
				}
			}
			if u := ds.Spec.UpdateStrategy; u.Type != appsv1.RollingUpdateDaemonSetStrategyType || u.RollingUpdate.MaxUnavailable.String() != "10%" {
				t.Errorf("the update strategy is %+v", u)
			}
			use := pod.Containers[0].Resources
			if use.Requests.Cpu().String() != "10m" || use.Requests.Memory().String() != "64Mi" || use.Limits.Memory().Cmp(*use.Requests.Memory()) <= 0 {
				t.Errorf("resources are %+v", use)
			}
			if _, limited := use.Limits[corev1.ResourceCPU]; limited {
				t.Error("the processor is limited: an agent that waits for it repairs no route")
			}
		})
	}
}

// tolerates reports whether a pod with a toleration stays on a node with a taint.
func tolerates(o corev1.Toleration, taint corev1.Taint) bool {
	key := o.Key == "" && o.Operator == corev1.TolerationOpExists || o.Key == taint.Key
	value := o.Operator == corev1.TolerationOpExists || o.Value == taint.Value
	return key && value && (o.Effect == "" || o.Effect == taint.Effect) && o.TolerationSeconds == nil
}

// TestWireGuard: with encryption the agent gets only one more right, to publish its key, and only on its own Node.
func TestWireGuard(t *testing.T) {
	encrypted := func(v map[string]any) { v["transport"], v["wireguardPort"] = "wireguard", 51900 }
	var own admission.ValidatingAdmissionPolicy
	var binding admission.ValidatingAdmissionPolicyBinding
	ds, role := objects(t, chart.Render(t, encrypted), &own, &binding)
	if s := binding.Spec; s.PolicyName != own.Name || !slices.Equal(s.ValidationActions, []admission.ValidationAction{admission.Deny}) || *own.Spec.FailurePolicy != admission.Fail {
		t.Errorf("the policy of the own Node does not deny: %+v, %+v", own.Spec, s)
	}
	objects(t, chart.Render(t, func(v map[string]any) { encrypted(v); v["ownNodeOnly"] = false }))
	_, plain := objects(t, chart.Render(t, nil))
	want := rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"nodes/status"}, Verbs: []string{"patch"}}
	if n := len(plain.Rules); len(role.Rules) != n+1 || role.Rules[n].String() != want.String() {
		t.Errorf("rights are %v", role.Rules)
	}
	if args := ds.Spec.Template.Spec.Containers[0].Args; !slices.Contains(args, "--transport=wireguard") || !slices.Contains(args, "--wireguard-port=51900") {
		t.Errorf("arguments are %q", args)
	}
}

// balancers returns the objects for addresses of load balancers, with the rights in all namespaces.
func balancers(t *testing.T, change func(map[string]any)) (ds appsv1.DaemonSet, role rbacv1.Role, all rbacv1.ClusterRole) {
	t.Helper()
	var ns corev1.Namespace
	var binding rbacv1.RoleBinding
	ds, all = objects(t, chart.Render(t, func(v map[string]any) {
		if v["loadBalancers"] = true; change != nil {
			change(v)
		}
	}), &ns, &role, &binding)
	if ns.Name != lan.Namespace || role.Namespace != lan.Namespace || binding.Namespace != lan.Namespace || binding.RoleRef.Name != role.Name {
		t.Errorf("the Leases are in %s, and the namespace is %s, with rights in %s and %s", lan.Namespace, ns.Name, role.Namespace, binding.Namespace)
	}
	return ds, role, all
}

// TestLoadBalancers: rights to write are only in a namespace of its own, but for the status of Services.
func TestLoadBalancers(t *testing.T) {
	ds, role, all := balancers(t, nil)
	_, plain := objects(t, chart.Render(t, nil))
	var added []string
	for _, r := range all.Rules[len(plain.Rules):] {
		added = append(added, r.String())
	}
	want := []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"services"}, Verbs: []string{"list", "watch"}},
		{APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}, Verbs: []string{"list", "watch"}},
		{APIGroups: []string{"networking.k8s.io"}, Resources: []string{"servicecidrs"}, Verbs: []string{"list", "watch"}},
		{APIGroups: []string{""}, Resources: []string{"services/status"}, Verbs: []string{"patch"}},
	}
	if !slices.EqualFunc(added, want, func(a string, b rbacv1.PolicyRule) bool { return a == b.String() }) {
		t.Errorf("in all namespaces it may %v", added)
	}
	if len(role.Rules) != 2 || !slices.Equal(role.Rules[0].Resources, []string{"leases"}) || !slices.Equal(role.Rules[1].ResourceNames, []string{lan.PoolsName}) ||
		!slices.Equal(role.Rules[1].Verbs, []string{"list", "watch"}) {
		t.Errorf("in its namespace it may %v", role.Rules)
	}
	if args := ds.Spec.Template.Spec.Containers[0].Args; !slices.Contains(args, "--load-balancers=on") {
		t.Errorf("arguments are %q", args)
	}
	ds, _, _ = balancers(t, func(v map[string]any) { v["loadBalancersClassOnly"] = true })
	if args := ds.Spec.Template.Spec.Containers[0].Args; !slices.Contains(args, "--load-balancers=class") {
		t.Errorf("arguments are %q", args)
	}
}

// networked returns the objects for further networks of pods, with the rule that limits the agent.
func networked(t *testing.T, change func(map[string]any)) (ds appsv1.DaemonSet, role rbacv1.ClusterRole, own admission.ValidatingAdmissionPolicy) {
	t.Helper()
	var binding admission.ValidatingAdmissionPolicyBinding
	ds, role = objects(t, chart.Render(t, func(v map[string]any) {
		if v["networks"] = true; change != nil {
			change(v)
		}
	}), &own, &binding)
	if s := binding.Spec; s.PolicyName != own.Name || !slices.Equal(s.ValidationActions, []admission.ValidationAction{admission.Deny}) || *own.Spec.FailurePolicy != admission.Fail {
		t.Errorf("the policy of this node's pods does not deny: %+v, %+v", own.Spec, s)
	}
	return ds, role, own
}

// TestNetworks: with further networks the agent may read their definitions and write the status of pods, and a rule limits what.
func TestNetworks(t *testing.T) {
	ds, role, own := networked(t, nil)
	_, plain := objects(t, chart.Render(t, nil))
	var added []string
	for _, r := range role.Rules[len(plain.Rules):] {
		added = append(added, r.String())
	}
	want := []rbacv1.PolicyRule{
		{APIGroups: []string{"k8s.cni.cncf.io"}, Resources: []string{"network-attachment-definitions"}, Verbs: []string{"list", "watch"}},
		{APIGroups: []string{""}, Resources: []string{"pods/status"}, Verbs: []string{"patch"}},
	}
	if !slices.EqualFunc(added, want, func(a string, b rbacv1.PolicyRule) bool { return a == b.String() }) {
		t.Errorf("it may %v", added)
	}
	if r := own.Spec.MatchConstraints.ResourceRules[0]; !slices.Equal(r.Resources, want[1].Resources) || !strings.Contains(fmt.Sprint(own.Spec.Validations), npwg.StatusKey) {
		t.Errorf("the rule is %+v", own.Spec)
	}
	args := ds.Spec.Template.Spec.Containers[0].Args
	if !slices.Contains(args, "--networks=on") || !slices.Contains(args, "--networks-bin-dir=/opt/cni/bin") || slices.Contains(args, "--networks-isolation") {
		t.Errorf("arguments are %q", args)
	}
	ds, role, _ = networked(t, func(v map[string]any) { v["networksIsolation"], v["networkPolicy"] = true, false })
	if args := ds.Spec.Template.Spec.Containers[0].Args; !slices.Contains(args, "--networks-isolation") {
		t.Errorf("arguments are %q", args)
	}
	if !slices.ContainsFunc(role.Rules, func(r rbacv1.PolicyRule) bool { return slices.Contains(r.Resources, "pods") }) {
		t.Errorf("without network policies the rights are %v", role.Rules)
	}
	objects(t, chart.Render(t, func(v map[string]any) { v["networks"], v["ownNodeOnly"] = true, false }))
}

// TestDefinition: the kind of definitions of networks is that of the Network Plumbing Working Group, section 3.1.
func TestDefinition(t *testing.T) {
	text, err := os.ReadFile("network-attachment-definitions.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var crd struct {
		Metadata struct{ Name string }
		Spec     struct {
			Group, Scope string
			Names        struct {
				Plural, Singular, Kind string
				ShortNames             []string
			}
			Versions []struct {
				Name            string
				Served, Storage bool
				Subresources    any
			}
		}
	}
	if err := yaml.Unmarshal(text, &crd); err != nil {
		t.Fatal(err)
	}
	s := crd.Spec
	if crd.Metadata.Name != s.Names.Plural+"."+s.Group || s.Group != "k8s.cni.cncf.io" || s.Scope != "Namespaced" || s.Names.Kind != "NetworkAttachmentDefinition" ||
		s.Names.Plural != "network-attachment-definitions" || s.Names.Singular != "network-attachment-definition" || s.Names.ShortNames[0] != "net-attach-def" {
		t.Errorf("%+v", crd)
	}
	if v := s.Versions; len(v) != 1 || v[0].Name != "v1" || !v[0].Served || !v[0].Storage || v[0].Subresources != nil {
		t.Errorf("versions %+v", v)
	}
}

// TestValues changes each value and looks for it in the result.
func TestValues(t *testing.T) {
	ds, role := objects(t, chart.Render(t, func(v map[string]any) {
		v["egressAddresses"], v["networkPolicy"], v["policyKeepConnections"], v["policyDefault"] = false, false, true, "own-namespace"
		v["policyLogGroup"], v["policyUnknown"], v["masqueradeKeepPorts"] = 7, "open", true
		v["services"], v["dropsGroup"], v["flowsGroup"] = true, 8, 9
		v["containersNamespace"], v["containersLabels"] = "shop", map[string]any{"app": "web", "tier": "2"}
		v["clusterCIDRs"] = []string{"10.1.0.0/16", "fd00:1::/56"}
		v["image"], v["imagePullPolicy"] = "registry.example/patchbay:1", "Never"
		v["transport"], v["port"] = "vxlan", 8472
		v["listenAddress"], v["listenPort"] = "0.0.0.0", 9999
		v["cniBinDir"], v["cniConfDir"] = "/usr/lib/cni", "/etc/cni/other"
		v["apiServerHost"], v["apiServerPort"] = "fd00::1", 443
	}))
	c := ds.Spec.Template.Spec.Containers[0]
	wantArgs := []string{
		"node", "--cluster-cidr=10.1.0.0/16", "--cluster-cidr=fd00:1::/56", "--transport=vxlan", "--port=8472", "--drops-group=8", "--flows-group=9",
		"--cni-bin-dir=/host/usr/lib/cni", "--cni-conf-dir=/host/etc/cni/other",
		"--masquerade-config=/etc/patchbay/masquerade/config", "--masquerade-keep-ports", "--network-policy=off", "--policy-default=own-namespace", "--policy-unknown=open", "--policy-keep-connections",
		"--policy-log-group=7", "--services=on", "--containers-namespace=shop", "--containers-label=app=web", "--containers-label=tier=2",
		"--listen=0.0.0.0:9999",
	}
	if !slices.Equal(c.Args, wantArgs) {
		t.Errorf("arguments are %q, want %q", c.Args, wantArgs)
	}
	want := []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"services"}, Verbs: []string{"list", "watch"}},
		{APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}, Verbs: []string{"list", "watch"}},
		{APIGroups: []string{"networking.k8s.io"}, Resources: []string{"servicecidrs"}, Verbs: []string{"list", "watch"}},
	}
	if len(role.Rules) != 5 || !slices.EqualFunc(role.Rules[2:], want, func(a, b rbacv1.PolicyRule) bool { return a.String() == b.String() }) {
		t.Errorf("with Services, and without egress addresses and network policies, the rights are %v", role.Rules)
	}
	for _, value := range []string{"egressAddresses", "networkPolicy"} {
		_, role := objects(t, chart.Render(t, func(v map[string]any) { v[value] = false }))
		if !slices.ContainsFunc(role.Rules, func(r rbacv1.PolicyRule) bool { return slices.Contains(r.Resources, "namespaces") }) {
			t.Errorf("with %s alone switched off, the rights are %v", value, role.Rules)
		}
	}
	if c.Image != "registry.example/patchbay:1" || c.ImagePullPolicy != corev1.PullNever || c.ReadinessProbe.HTTPGet.Port.IntValue() != 9999 {
		t.Errorf("image %s, policy %s, port %s", c.Image, c.ImagePullPolicy, &c.ReadinessProbe.HTTPGet.Port)
	}
	if e := c.Env; len(e) != 3 || e[1].Value != "fd00::1" || e[2].Value != "443" {
		t.Errorf("environment is %v", e)
	}
}

// TestPodValues changes what the pods of the agent get, and their numbers' readers.
func TestPodValues(t *testing.T) {
	monitor := map[string]any{}
	ds, _ := objects(t, chart.Render(t, func(v map[string]any) {
		v["imagePullSecrets"], v["nodeSelector"] = []string{"registry"}, map[string]any{"kubernetes.io/os": "linux", "pods": "true"}
		v["podLabels"], v["podAnnotations"] = map[string]any{"team": "net"}, map[string]any{"example.com/note": "a: b"}
		v["resources"] = map[string]any{"requests": map[string]any{"memory": "100Mi"}}
		v["seLinuxType"], v["extraArgs"], v["podMonitor"] = "spc_t", []string{"--mtu=1400"}, true
	}), &monitor)
	pod, c := ds.Spec.Template, ds.Spec.Template.Spec.Containers[0]
	if !reflect.DeepEqual(pod.Spec.ImagePullSecrets, []corev1.LocalObjectReference{{Name: "registry"}}) || pod.Spec.NodeSelector["pods"] != "true" {
		t.Errorf("got %v, %v", pod.Spec.ImagePullSecrets, pod.Spec.NodeSelector)
	}
	if pod.Labels["team"] != "net" || pod.Labels["app.kubernetes.io/name"] != "patchbay" || pod.Annotations["example.com/note"] != "a: b" {
		t.Errorf("got %v, %v", pod.Labels, pod.Annotations)
	}
	if c.Resources.Requests.Memory().String() != "100Mi" || c.Resources.Limits != nil || c.SecurityContext.SELinuxOptions.Type != "spc_t" {
		t.Errorf("got %+v, %+v", c.Resources, c.SecurityContext)
	}
	if n := len(c.Args); !slices.Equal(c.Args[n-2:], []string{"--listen=0.0.0.0:9472", "--mtu=1400"}) {
		t.Errorf("arguments are %q", c.Args)
	}
	if monitor["kind"] != "PodMonitor" || c.Ports[0].Name != "metrics" || c.Ports[0].ContainerPort != 9472 {
		t.Errorf("got %v, %+v", monitor, c.Ports)
	}
}
