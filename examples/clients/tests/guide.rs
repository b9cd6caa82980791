//! The guide's code for each client is the code of its example, which is compiled and run.

use std::fs;
use std::path::{Path, PathBuf};

fn here() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// A text's lines without what indents them, blank ones left out.
fn lines(text: &str) -> Vec<&str> {
    let lines = text.lines().map(str::trim);
    lines.filter(|line| !line.is_empty()).collect()
}

/// The name that an example's file has for a heading: `Any function` is `any_function`.
fn file(heading: &str) -> PathBuf {
    let name = heading.to_lowercase().replace([' ', '-'], "_");
    here().join("examples").join(name).with_extension("rs")
}

/// The headings below "Recipes", each with the blocks of code below it.
fn recipes(page: &str) -> Vec<(&str, Vec<&str>)> {
    let (_, section) = page.split_once("\n# Recipes\n").expect("the section");
    let section = section.split("\n# ").next().expect("a text");
    let recipes = section.split("\n## ").skip(1);
    recipes
        .map(|recipe| {
            let heading = recipe.lines().next().expect("a heading");
            let code = recipe.split("```rust,ignore\n").skip(1);
            let code = code.map(|code| code.split("```").next().expect("its end"));
            (heading, code.collect())
        })
        .collect()
}

fn is_part_of(code: &str, example: &str) -> bool {
    let (code, example) = (lines(code), lines(example));
    example.windows(code.len()).any(|window| window == code)
}

#[test]
fn the_guides_code_for_each_client_is_that_of_its_example() {
    let page = fs::read_to_string(here().join("../../src/guide/clients.md"));
    let page = page.expect("the guide's page of clients");
    let recipes = recipes(&page);
    for (heading, code) in &recipes {
        let example = fs::read_to_string(file(heading));
        let example = example.unwrap_or_else(|err| panic!("{heading}: {err}"));
        assert!(!code.is_empty(), "{heading} shows no code");
        for code in code {
            assert!(
                is_part_of(code, &example),
                "{heading} is not its example:\n{code}"
            );
        }
    }
    let mut shown: Vec<_> = recipes.iter().map(|(heading, _)| file(heading)).collect();
    shown.sort();
    let examples = fs::read_dir(Path::new(&here()).join("examples")).expect("the examples");
    let mut examples: Vec<_> = examples.map(|entry| entry.expect("one").path()).collect();
    examples.sort();
    assert_eq!(shown, examples, "each example is shown, and nothing else");
}
