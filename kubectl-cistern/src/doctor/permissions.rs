//! Checks the permissions of Cistern's service accounts and of the current user.

use std::collections::BTreeSet;

use futures::{StreamExt as _, stream};
use k8s_openapi::api::{
    authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
    rbac::v1::PolicyRule,
};
use kube::api::PostParams;

use super::{
    manifests::{self, Rights},
    report::{APPLY, Check},
    used::{USED, Used},
};
use crate::{Connection, Error, access};

const ACCOUNTS: &str = "accounts";
const YOURS: &str = "your rights";
/// Maximum number of access reviews at the same time.
const AT_ONCE: usize = 16;

/// One permission to review. Without `account`, it concerns the current user.
#[derive(Clone, Debug, PartialEq)]
struct Question {
    account: Option<String>,
    attributes: ResourceAttributes,
}

/// Checks the permissions that the manifests grant to Cistern's accounts, and those that the plugin
/// needs from the current user. Fails if a review fails. If the user may not review the accounts,
/// the result is a warning instead.
pub async fn examine(connection: &Connection) -> Result<Vec<Check>, Error> {
    let namespace = &connection.system_namespace;
    let rights = manifests::rights(false);
    let questions: Vec<Question> = rights
        .iter()
        .flat_map(|it| questions(it, namespace))
        .collect();
    let accounts = match ask(connection, &questions).await {
        Ok(refused) => accounts(&refused, questions.len()),
        Err(Error::Denied { .. }) => Check::warn(
            ACCOUNTS,
            "you may not review the permissions of others (create subjectaccessreviews)",
            "ask a cluster administrator",
        ),
        Err(error) => return Err(error),
    };
    let own = own_questions(namespace);
    let refused = ask(connection, &own).await?;
    Ok(vec![accounts, yours(&refused, own.len())])
}

/// Expands the rules of an account to single permissions.
fn questions(rights: &Rights, namespace: &str) -> Vec<Question> {
    let account = format!("system:serviceaccount:{namespace}:{}", rights.account);
    let namespace = rights.namespaced.then(|| namespace.to_owned());
    let mut questions = Vec::new();
    for rule in &rights.rules {
        for attributes in each(rule) {
            questions.push(Question {
                account: Some(account.clone()),
                attributes: ResourceAttributes {
                    namespace: namespace.clone(),
                    ..attributes
                },
            });
        }
    }
    questions
}

/// Expands a rule to single permissions.
fn each(rule: &PolicyRule) -> Vec<ResourceAttributes> {
    let group = rule
        .api_groups
        .iter()
        .flatten()
        .next()
        .cloned()
        .unwrap_or_default();
    let names = match rule.resource_names.as_deref() {
        None | Some([]) => vec![None],
        Some(names) => names.iter().cloned().map(Some).collect(),
    };
    let mut all = Vec::new();
    for resource in rule.resources.iter().flatten() {
        for verb in &rule.verbs {
            all.extend(
                names
                    .iter()
                    .map(|name| attributes(&group, resource, verb, name.clone())),
            );
        }
    }
    all
}

fn attributes(group: &str, resource: &str, verb: &str, name: Option<String>) -> ResourceAttributes {
    let (resource, subresource) = match resource.split_once('/') {
        Some((resource, subresource)) => (resource, Some(subresource.to_owned())),
        None => (resource, None),
    };
    ResourceAttributes {
        group: Some(group.to_owned()),
        resource: Some(resource.to_owned()),
        subresource,
        verb: Some(verb.to_owned()),
        name,
        ..ResourceAttributes::default()
    }
}

/// Returns the permissions of the current user that are reviewed.
fn own_questions(namespace: &str) -> Vec<Question> {
    let questions = USED.iter().flat_map(|used| {
        let namespace = used.in_system.then(|| namespace.to_owned());
        used.verbs.iter().map(move |verb| Question {
            account: None,
            attributes: ResourceAttributes {
                namespace: namespace.clone(),
                ..attributes(used.group, used.resource, verb, None)
            },
        })
    });
    questions.collect()
}

/// Returns the commands that use one of these permissions, sorted.
fn commands(refused: &[Question]) -> BTreeSet<&'static str> {
    let is_refused = |used: &&Used| {
        refused.iter().any(|it| {
            let verb = it.attributes.verb.as_deref().unwrap_or_default();
            let same = attributes(used.group, used.resource, verb, None);
            used.verbs.contains(&verb)
                && (&same.group, &same.resource, &same.subresource)
                    == (
                        &it.attributes.group,
                        &it.attributes.resource,
                        &it.attributes.subresource,
                    )
        })
    };
    let used = USED.iter().filter(is_refused);
    used.flat_map(|used| used.commands).copied().collect()
}

/// Reviews all permissions and returns those that are denied.
async fn ask(connection: &Connection, questions: &[Question]) -> Result<Vec<Question>, Error> {
    let asked = stream::iter(questions.to_vec())
        .map(|question| async move {
            let allowed = is_allowed(connection, &question).await?;
            Ok::<_, Error>((!allowed).then_some(question))
        })
        .buffered(AT_ONCE);
    let answers: Vec<_> = asked.collect().await;
    let refused: Result<Vec<Option<Question>>, Error> = answers.into_iter().collect();
    Ok(refused?.into_iter().flatten().collect())
}

async fn is_allowed(connection: &Connection, question: &Question) -> Result<bool, Error> {
    let attributes = question.attributes.clone();
    let Some(account) = &question.account else {
        return access::is_allowed(connection, attributes).await;
    };
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(account.clone()),
            groups: Some(groups(account)),
            resource_attributes: Some(attributes),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    };
    let (api, parameters) = (connection.everywhere(), PostParams::default());
    let answer = connection.ask(access::WHAT, api.create(&parameters, &review));
    Ok(answer.await?.status.is_some_and(|status| status.allowed))
}

/// Returns the groups that the API server assigns to a service account.
fn groups(account: &str) -> Vec<String> {
    let namespace = account.split(':').nth(2).unwrap_or_default();
    vec![
        "system:serviceaccounts".to_owned(),
        format!("system:serviceaccounts:{namespace}"),
        "system:authenticated".to_owned(),
    ]
}

impl std::fmt::Display for Question {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        let it = &self.attributes;
        write!(f, "{} {}", text(&it.verb), text(&it.resource))?;
        if let Some(subresource) = &it.subresource {
            write!(f, "/{subresource}")?;
        }
        match it.group.as_deref() {
            None | Some("") => Ok(()),
            Some(group) => write!(f, ".{group}"),
        }
    }
}

fn accounts(refused: &[Question], asked: usize) -> Check {
    match refused {
        [] => Check::ok(ACCOUNTS, format!("all {asked} permissions are granted")),
        [first, ..] => {
            let account = first.account.as_deref().unwrap_or_default();
            let more = match refused.len() {
                1 => String::new(),
                count => format!(" (and {} more)", count - 1),
            };
            Check::fail(ACCOUNTS, format!("{account} may not {first}{more}"), APPLY)
        }
    }
}

fn yours(refused: &[Question], asked: usize) -> Check {
    match refused {
        [] => Check::ok(
            YOURS,
            format!("you have all {asked} permissions that this plugin uses"),
        ),
        some => {
            // One in all namespaces and one in that of Cistern may have the same words.
            let mut each: Vec<String> = Vec::new();
            for permission in some.iter().map(ToString::to_string) {
                if !each.contains(&permission) {
                    each.push(permission);
                }
            }
            let commands: Vec<&str> = commands(some).into_iter().collect();
            Check::warn(
                YOURS,
                format!("you may not {}", each.join(", ")),
                format!(
                    "these commands work in part or not at all for you: {}",
                    commands.join(", ")
                ),
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_permission_of_every_account_is_reviewed() {
        let rights = manifests::rights(true);
        let all: Vec<Question> = rights.iter().flat_map(|it| questions(it, "s")).collect();
        let says = |account: &str, text: &str| {
            let account = format!("system:serviceaccount:s:{account}");
            let of = |it: &&Question| it.account.as_deref() == Some(&account);
            all.iter().filter(of).any(|it| it.to_string() == text)
        };
        assert!(says(
            "cistern-controller",
            "create poolvolumes.cistern.storage"
        ));
        assert!(says(
            "cistern-node",
            "patch poolvolumes/status.cistern.storage"
        ));
        assert!(says(
            "cistern-operator",
            "create csistoragecapacities.storage.k8s.io"
        ));
        let lease = all.iter().find(|it| it.attributes.name.is_some()).unwrap();
        assert_eq!(lease.attributes.namespace.as_deref(), Some("s"));
    }

    #[test]
    fn a_missing_permission_is_named() {
        assert_eq!(accounts(&[], 9).message, "all 9 permissions are granted");
        let missing = own_questions("s");
        let check = yours(&missing[..2], missing.len());
        assert_eq!(
            check.message,
            "you may not list storagepools.cistern.storage, watch storagepools.cistern.storage"
        );
        assert!(
            check.action.contains("pools, promote, snapshots"),
            "{}",
            check.action
        );
        let only_cordon = missing
            .iter()
            .find(|it| it.to_string().starts_with("patch storagepools"));
        let check = yours(&[only_cordon.unwrap().clone()], missing.len());
        assert_eq!(
            check.action,
            "these commands work in part or not at all for you: cordon, drain, forget-node, replace-disk, uncordon"
        );
    }
}
